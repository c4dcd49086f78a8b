#include "cli/scenario_flags.h"

#include <fstream>

#include "cli/interrupt.h"
#include "shared/base/error.h"
#include "traces/scenario.h"

namespace cp::cli {

void save_scenario_file(const std::string& path, const proto::Scenario& scenario) {
  std::ofstream file(path, std::ios::binary);
  finish([&] {
    file << write_scenario_text(scenario);
    file.close();
  });
  if (!file)
    throw InvalidInput(str("cannot write the scenario ", path, "; use a path in an existing folder"));
}

}  // namespace cp::cli
