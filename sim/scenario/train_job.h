// What a `train` scenario asks for: the step, the text, and when to evaluate and to save.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/training/learning_rate.h"
#include "shared/training/token_windows.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/tensor_places.h"
#include "traces/checkpoints/checkpoint.h"
#include "traces/scenario.pb.h"
#include "traces/tokens/token_files.h"

namespace cp::sim {

struct TrainJob {
  StepRequest request;
  std::string config;  // JSON of the model, as a checkpoint holds it
  std::string family;  // its model_type
  LearningRate learning_rate;
  double correction_rate = 0;  // of what routers add to scores
  std::int64_t steps = 0;
  std::shared_ptr<const TokenFiles> text;
  std::string documents;                        // how those of the text are told apart; or empty
  std::shared_ptr<const TokenWindows> windows;  // which read `text`
  std::int64_t evaluate_every = 0;              // 0: at the end alone
  std::string save;                             // folder of checkpoints, or empty
  std::int64_t save_every = 0;                  // 0: at the end alone
  int keep = 2;
  std::string init_from;
  std::uint64_t seed = 0;

  int world() const { return request.layout.world(); }
  // All that a rank's steps depend on, a field each, with its name and its value: ranks compare them.
  std::vector<std::string> described() const;
  // What a checkpoint behind `step` updates says.
  CheckpointFacts facts(std::int64_t step) const;
  // In what a checkpoint is not of this training, in words, or nothing.
  std::string differs(const CheckpointFacts& facts) const;
};

// `folder` is that of the scenario's file, in which its paths are looked up first. Throws InvalidInput that
// names the field at fault, its value and what would work; that includes a layout that is not legal for the
// model, and a model with layers that no host kernel computes.
TrainJob make_train_job(const proto::Train& train, const std::string& folder = "");

}  // namespace cp::sim
