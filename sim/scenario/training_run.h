// One rank's whole training, on any device: cprun runs it in processes, and on
// the fabric it runs in threads.
//
//   agree on the job - take the newest checkpoint that is whole, or the files of a model, or draw
//   each step: its tokens, the step, the loss of all ranks; now and then an evaluation, a checkpoint
//
// What ranks tell one another beside their plans, a few bytes in each step, goes through
// TrainingOptions::gather.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/trace.h"
#include "shared/training/trainer.h"
#include "sim/scenario/train_job.h"
#include "traces/checkpoints/checkpoint_phase.h"

namespace cp::sim {

// What there is to tell. Rank 0 tells it.
struct TrainingEvent {
  enum class Kind : std::uint8_t {
    begun,  // `text` says with what
    step,
    evaluated,  // `loss` is of the evaluation
    saved,      // `text` is the folder
    refused,    // a checkpoint, `text` says why
    stopped,    // before all steps were made
    done,
  };
  Kind kind = Kind::step;
  std::int64_t step = 0;  // updates so far
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  double seconds = 0;  // that it took
  double tokens_per_second = 0;
  std::string text;
};

struct TrainingOptions {
  // What all ranks have said, by rank; a collective call.
  std::function<std::vector<std::string>(const std::string& name, const std::string& own)> gather;
  std::function<void(const TrainingEvent&)> on_event = {};  // called on rank 0 alone
  // Whether the training is to end behind this step, with a checkpoint. One rank that wants it is enough.
  std::function<bool()> stops = {};
  std::function<void(const Plan&)> before_use = {};  // as of Trainer
  DeviceMemory* memory = nullptr;                    // likewise
  RankTrace* trace = nullptr;                        // of what the rank issues
  // Of checkpoints that are written, on each rank; of old ones that are removed on a thread of its own.
  ReachedPhase on_phase = {};
};

struct TrainingResult {
  std::int64_t step = 0;       // the last one made
  std::vector<double> losses;  // of the steps that this run made
  std::optional<double> evaluation;
  bool stopped = false;
};

// A collective call. Throws InvalidInput for a job that differs between ranks and for files that are no
// model's, CheckFailure for a loss that is no number, and what the device throws.
TrainingResult run_training(const TrainJob& job, Device& device, const TrainingOptions& options);

}  // namespace cp::sim
