// Flags that stand for fields of a scenario's job: what is given on the command line changes what the
// scenario file says, and --save-scenario writes the two together.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/flags.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

template <class Job>
struct ScenarioFlags {
  std::vector<std::function<void(Job&)>> changes;
  std::string scenario, save_scenario;  // paths; empty: not given

  Job apply_to(Job job) const {
    for (const auto& change : changes) change(job);
    return job;
  }
};

// A flag with a value for a field: set(job, text).
template <class Job, class Set>
Flag add_field(FlagSet app, ScenarioFlags<Job>& flags, const char* flag, const char* type, const char* help,
               Set set) {
  return add_value(app, flag, type, help, [&flags, set](const std::string& text) {
    flags.changes.emplace_back([set, text](Job& job) { set(job, text); });
  });
}

// A flag without one: set(job).
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

// A scenario that holds the job of the command "run", "redistribute" or "plan". Throws InvalidInput as
// read_scenario_file does, and for a job of another command, which it names.
proto::Scenario read_scenario_of(std::string_view command, const std::string& path);

// Throws InvalidInput when the file cannot be written.
void save_scenario_file(const std::string& path, const proto::Scenario& scenario);

}  // namespace cp::cli
