// The ledger of attention plans says what all ranks together compute, where the results end up, and what each
// rank receives. A shadow run finds this, and it is held against the mask rule, the homes of the tensors and
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
  // What is wrong with the cells, and with the bytes. Of cells it must hold that each allowed pair is
  // computed once and no other; that each row of an output is at its place and made of all its cells; that
  // rows which meet belong together; that scores are scaled by the problem's scale; and that what is not
  // finished is kept in f32, unless the strategy or fused attention rounds it. Of bytes it must hold that
  // those of each tensor are the expected ones.
  Findings cells, bytes;
  std::int64_t num_cells = 0;      // pairs computed, over batches and query heads
  std::vector<Received> received;  // by plan: what was received
  std::vector<Received> expected;  // by plan: what expected_traffic() says
};

// Keeps the ledger of one pass. `plans` are those of all the request's ranks, by ascending rank; they have
// passed check(). Throws InvalidInput for a plan of a rank that is none of the request's, and for a caller's
// buffer of another size than its role has.
AttentionLedger keep_ledger(const AttentionRequest& request, AttentionPass pass, std::span<const Plan> plans);

}  // namespace cp::sim
