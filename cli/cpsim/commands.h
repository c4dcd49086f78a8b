// The commands of cpsim: each adds itself to the command line and says how to run it.
#pragma once

#include <functional>
#include <vector>

#include <CLI/CLI.hpp>

namespace cp::cli {

struct Command {
  CLI::App* app = nullptr;   // parsed() when this is the command that was given
  std::function<int()> run;  // after parsing; returns the exit code, throws cp::Error
};

Command add_plan(CLI::App& cpsim);                  // plan.cc
Command add_redistribute(CLI::App& cpsim);          // redistribute.cc
Command add_run(CLI::App& cpsim);                   // run.cc
Command add_mutate(CLI::App& cpsim);                // mutate.cc
Command add_estimate(CLI::App& cpsim);              // estimate.cc
Command add_validate(CLI::App& cpsim);              // validate.cc
Command add_calibrate(CLI::App& cpsim);             // calibrate.cc
Command add_verify_redistribute(CLI::App& verify);  // verify.cc
Command add_fuzz(CLI::App& cpsim);                  // fuzz.cc
Command add_replay(CLI::App& cpsim);                // fuzz.cc
std::vector<Command> add_trace(CLI::App& cpsim);    // trace.cc; one for each of its own commands

}  // namespace cp::cli
