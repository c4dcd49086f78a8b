// Flags that stand for fields of a scenario's job. What the command line gives overrides what the scenario
// file says, and --save-scenario writes the two together.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/flags.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// The changes that the flags make to a job, and the two files. Parsing fills `changes`; apply_to() makes
// them, in the order of the command line. The object must outlive the parsing, since the flags refer to it.
template <class Job>
struct ScenarioFlags {
  std::vector<std::function<void(Job&)>> changes;
  std::string scenario, save_scenario;  // paths; empty: not given

  Job apply_to(Job job) const {
    for (const auto& change : changes) change(job);
    return job;
  }
};

// Adds a flag with a value. For each time it is given, apply_to() calls set(job, text).
template <class Job, class Set>
Flag add_field(FlagSet app, ScenarioFlags<Job>& flags, const char* flag, const char* type, const char* help,
               Set set) {
  return add_value(app, flag, type, help, [&flags, set](const std::string& text) {
    flags.changes.emplace_back([set, text](Job& job) { set(job, text); });
  });
}

// Adds a flag without a value, for which apply_to() calls set(job).
template <class Job, class Set>
Flag add_switch(FlagSet app, ScenarioFlags<Job>& flags, const char* flag, const char* help, Set set) {
  return app.add_flag(
      flag, [&flags, set] { flags.changes.emplace_back(set); }, help);
}

template <class Job>
void add_scenario_files(FlagSet app, ScenarioFlags<Job>& flags) {
  app.add_option("--scenario", flags.scenario,
                 "Read the job from this file; other flags override what it says")
      .type_name("FILE.txtpb");
  app.add_option("--save-scenario", flags.save_scenario, "Write the job that the flags describe to this file")
      .type_name("FILE.txtpb");
}

// Reads a scenario for `command`, which is "run", "redistribute" or "plan". Throws InvalidInput as
// read_scenario_file() does, and if the file holds the job of another command, which the message names.
proto::Scenario read_scenario_of(std::string_view command, const std::string& path);

// Writes the scenario as text. Throws InvalidInput if the file cannot be written.
void save_scenario_file(const std::string& path, const proto::Scenario& scenario);

}  // namespace cp::cli
