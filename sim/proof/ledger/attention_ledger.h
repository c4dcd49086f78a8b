// The ledger of attention plans: what all ranks together compute, where the results end up, and what each
// rank receives, found by a shadow run and held against the mask rule, the homes of the tensors and
// expected_traffic(). No number here comes from a builder.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/proof/ledger/findings.h"
#include "sim/proof/ledger/shadow_run.h"

namespace cp::sim {

struct AttentionLedger {
  // Cells: each allowed pair once and no other; each row of an output at its place and made of all its cells;
  // rows that meet belong together, scores are scaled by the problem's scale, and what is not finished is
  // kept in f32 unless the strategy, or fused attention, rounds it. Bytes: those of each tensor are the
  // expected ones.
  Findings cells, bytes;
  std::int64_t num_cells = 0;      // pairs computed, over batches and query heads
  std::vector<Received> received;  // by plan
  std::vector<Received> expected;  // by plan
};

// `plans`: of all the request's ranks, by ascending rank; they have passed check().
AttentionLedger keep_ledger(const AttentionRequest& request, AttentionPass pass, std::span<const Plan> plans);

}  // namespace cp::sim
