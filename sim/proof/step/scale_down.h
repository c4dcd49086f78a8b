// Models as small as a proof needs them, and the layouts that are proved with them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/transformer/step_plan.h"

namespace cp::sim {

// The same model in small: its kinds of layers in their order, each at least once; heads, kv heads, experts
// and groups in the same proportions as far as few of them allow; and all that it has or lacks. Widths are
// some tens, so that a step takes a fraction of a second. Sizes that are small already stay. Heads, layers,
// experts and the widths of MLPs are as many as the layout splits, where that is more: for 16 stages there
// are 16 layers, if the model has as many.
Transformer scaled_down(const Transformer& model, const ParallelLayout& layout = {});

// What a proof trains on.
struct ProofWorkload {
  std::int64_t seq_len = 0;
  DType dtype = DType::f32;
  // Of all sequences; empty: each is one document (Workload::cu_seqlens).
  std::vector<std::int64_t> cu_seqlens = {};
  // Workload::expert_imbalance, below which experts drop tokens; unset: they have room for all.
  std::optional<double> expert_imbalance = {};
  double attention_dropout = 0;
};

// Lets the experts of a step have room for all tokens.
void make_room_at_experts(StepRequest& request);

// A step of training with two micro-batches for each replica; with virtual stages as many as pipeline ranks.
StepRequest proof_request(const Transformer& model, const ParallelLayout& layout,
                          const ProofWorkload& workload);

// Every legal way to have `ranks` ranks: all degrees, every standard strategy of attention, all scans, both
// homes of windows and scans where these may differ, the ZeRO stages, and where tp is above 1 without
// sequence parallelism, too. Other choices (pieces, chunks, recomputation, orders of axes) are turned on in
// some of them, each in several.
std::vector<ParallelLayout> proof_layouts(const Transformer& model, int ranks, const ProofWorkload& workload);

}  // namespace cp::sim
