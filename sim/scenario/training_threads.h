// A training on the simulated fabric: a thread for each rank, in one process.
#pragma once

#include <vector>

#include "sim/scenario/training_run.h"

namespace cp::sim {

struct ThreadedTraining {
  TrainingResult result;          // of rank 0
  std::vector<RankTrace> traces;  // by rank, if they were asked for
};

// Runs all ranks. Of the options, `gather` and `trace` are its own. Throws as run_training() and
// Fabric::run().
ThreadedTraining train_on_threads(const TrainJob& job, TrainingOptions options, bool traces = false);

}  // namespace cp::sim
