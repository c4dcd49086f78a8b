// cprun train: trains a model on processes, or on threads of this one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/flags.h"
#include "cli/cprun/launch.h"
#include "runtime/job_environment.h"
#include "sim/scenario/train_job.h"

namespace cp::cli {

struct TrainFlags {
  std::string scenario;  // path, or
  std::string model;     // a preset, which is scaled down
  // What flags say instead of the scenario.
  std::optional<std::string> layout, save, init_from, tokenizer, documents;
  std::optional<std::int64_t> steps, save_every, keep, evaluate_every, seed;
  std::vector<std::string> text;
  std::string log, page;
  bool threads = false;   // ranks are threads of this process, on the fabric
  bool terminal = false;  // of a rank: whether its launcher stands on a terminal
  bool verify = false;    // compares with the fabric
};

// Adds the command; of the job's flags it takes those of cprun, before or behind its name.
FlagSet add_train(FlagSet cprun, TrainFlags& flags);

// Reads the scenario, and puts in what flags say. `ranks`: how many are started; nothing if the layout says
// so.
sim::TrainJob train_job(const TrainFlags& flags, std::optional<int> ranks);

// Runs the command, but for a rank, whose launcher gave it a job. Returns the exit code.
int run_train(TrainFlags& flags, LaunchRequest request);
int run_train_rank(const TrainFlags& flags, const runtime::JobEnvironment& job);

}  // namespace cp::cli
