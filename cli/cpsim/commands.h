// The commands of cpsim. Each add_ function below adds its command and the command's flags to the command
// line, and returns how to run it.
#pragma once

#include <functional>
#include <vector>

#include "cli/common/flags.h"

namespace cp::cli {

struct Command {
  FlagSet app;               // parsed() tells whether this command was given
  std::function<int()> run;  // to be called after parsing; returns the exit code, throws cp::Error
};

Command add_plan(FlagSet cpsim);                  // plan.cc
Command add_redistribute(FlagSet cpsim);          // redistribute.cc
Command add_run(FlagSet cpsim);                   // run.cc
Command add_prove(FlagSet cpsim);                 // prove.cc
Command add_parameter(FlagSet cpsim);             // parameter.cc
Command add_mutate(FlagSet cpsim);                // mutate.cc
Command add_estimate(FlagSet cpsim);              // estimate.cc
Command add_validate(FlagSet cpsim);              // validate.cc
Command add_calibrate(FlagSet cpsim);             // calibrate.cc
Command add_list(FlagSet cpsim);                  // list.cc
Command add_mesh(FlagSet cpsim);                  // mesh.cc
Command add_verify_redistribute(FlagSet verify);  // verify.cc
Command add_fuzz(FlagSet cpsim);                  // fuzz.cc
Command add_replay(FlagSet cpsim);                // fuzz.cc
std::vector<Command> add_trace(FlagSet cpsim);    // trace.cc; one for each of the commands of `cpsim trace`

}  // namespace cp::cli
