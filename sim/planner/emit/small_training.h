// The training of a model in small, with which a layout is tried before a cluster is paid for it: what
// `cprun train --model NAME --layout LAYOUT` makes, and `cpsim plan --emit cprun` writes.
#pragma once

#include <cstdint>
#include <string>

#include "shared/transformer/model.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/workload.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

// 20 steps of the model, scaled down, on the project's own pages. `model` is a preset's name or the path of a
// config. Sequences have 128 tokens, or as many as the layout can split. Batch and number formats have the
// defaults of message Train.
proto::Train small_training(const std::string& model, const ParallelLayout& layout);

// How many micro-batches a replica computes in a step in small: two if it computes several in the workload,
// so that gradients of one are added to those of another; and those that interleaved stages need.
std::int64_t small_accumulation(const Workload& workload, const ParallelLayout& layout);

}  // namespace cp::sim
