// Scenario files: what a command is to do, as protobuf text (.txtpb) that people write. scenario.proto has
// the fields.
#pragma once

#include <string>
#include <string_view>

#include "traces/scenario.pb.h"

namespace cp {

// Parses the text. Throws one InvalidInput with a line `file:line:column: message` for each error, as
// read_text does; a required field that is missing is one too. Meshes, shapes and placements are texts here:
// whoever uses them parses them.
proto::Scenario read_scenario_text(std::string_view text, std::string_view filename);

// The same for a file; also throws InvalidInput when it cannot be read.
proto::Scenario read_scenario_file(const std::string& path);

// The text of a scenario file, with every field that is set; reading it gives the same scenario.
std::string write_scenario_text(const proto::Scenario& scenario);

}  // namespace cp
