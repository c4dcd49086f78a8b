// Scenario files: what a command is to do, as protobuf text (.txtpb) that people write. scenario.proto has the fields.
#pragma once

#include <string>
#include <string_view>

#include "traces/scenario.pb.h"

namespace cp {

// Parses the text. Throws one InvalidInput with a line `file:line:column: message` for each error, in order of place; lines
// and columns count from 1 and columns count bytes. An error is: a field or enumerator that does not exist (the message names
// the nearest one that does), a value of the wrong type, a field that comes twice, a required field that is missing. What
// cannot be parsed is skipped to the end of its line, so that what follows is reported too; where that is not possible, as
// after an unclosed brace, it is the last error. Meshes, shapes and placements are texts here: whoever uses them parses them.
proto::Scenario read_scenario_text(std::string_view text, std::string_view filename);

// The same for a file; also throws InvalidInput when it cannot be read.
proto::Scenario read_scenario_file(const std::string& path);

// The text of a scenario file, with every field that is set; reading it gives the same scenario.
std::string write_scenario_text(const proto::Scenario& scenario);

}  // namespace cp
