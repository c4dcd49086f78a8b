// Scenario files say what a command is to do, as protobuf text (.txtpb) that people write. The fields are in
// scenario.proto.
#pragma once

#include <string>
#include <string_view>

#include "traces/scenario.pb.h"

namespace cp {

// Parses the text. Throws one InvalidInput for all errors, with a line `file:line:column: message` for each,
// as read_text() does; a required field that is missing is an error, too. Meshes, shapes and placements are
// still texts here; whoever uses them parses them.
proto::Scenario read_scenario_text(std::string_view text, std::string_view filename);

// The same for a file; also throws InvalidInput if it cannot be read.
proto::Scenario read_scenario_file(const std::string& path);

// The text of a scenario file, with every field that is set. Reading it gives the same scenario.
std::string write_scenario_text(const proto::Scenario& scenario);

}  // namespace cp
