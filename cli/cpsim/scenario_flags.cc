#include "cli/cpsim/scenario_flags.h"

#include <fstream>

#include <google/protobuf/descriptor.h>

#include "cli/common/interrupt.h"
#include "shared/base/error.h"
#include "traces/scenario.h"

namespace cp::cli {

proto::Scenario read_scenario_of(std::string_view command, const std::string& path) {
  proto::Scenario scenario = read_scenario_file(path);
  // Jobs are named as their commands, but for recurrences, which `run` runs.
  std::string job = proto::Scenario::descriptor()->FindFieldByNumber(scenario.job_case())->name();
  if (scenario.has_recurrence()) job = "run";
  if (scenario.has_train())
    throw InvalidInput(str("--scenario ", path, ": the file trains a model; use cprun train ", path));
  if (job != command)
    throw InvalidInput(str("--scenario ", path, ": the file holds a job of another command, ", job,
                           " { ... }; use cpsim ", job, " --scenario ", path));
  return scenario;
}

void save_scenario_file(const std::string& path, const proto::Scenario& scenario) {
  std::ofstream file(path, std::ios::binary);
  finish([&] {
    file << write_scenario_text(scenario);
    file.close();
  });
  if (!file)
    throw InvalidInput(str("--save-scenario ", path,
                           ": the scenario cannot be written there; use a path in an existing folder"));
}

}  // namespace cp::cli
