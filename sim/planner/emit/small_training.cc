#include "sim/planner/emit/small_training.h"

#include <algorithm>

namespace cp::sim {
namespace {

// Chosen: a loss that falls within seconds, and a length that most layouts can split.
constexpr std::int64_t kSeqLen = 128, kSteps = 20, kWarmUp = 5;
constexpr double kLearningRate = 2e-3;

// Each rank has a row for every piece that it takes the rows in (layout_refusal.cc).
std::int64_t least_seq_len(const ParallelLayout& layout) {
  return std::int64_t{layout.cp} * std::max({layout.row_ranks(), layout.loss_chunks, layout.mlp_chunks});
}

}  // namespace

proto::Train small_training(const std::string& model, const ParallelLayout& layout) {
  proto::Train train;
  train.set_model(model), train.set_scaled_down(true), train.set_layout(to_string(layout));
  train.set_seq_len(std::max(kSeqLen, least_seq_len(layout))), train.set_steps(kSteps);
  train.set_learning_rate(kLearningRate), train.set_warmup_steps(kWarmUp);
  return train;
}

std::int64_t small_accumulation(const Workload& workload, const ParallelLayout& layout) {
  if (layout.virtual_stages > 1) return layout.pp;
  return std::min<std::int64_t>(accumulation(workload, layout), 2);
}

}  // namespace cp::sim
