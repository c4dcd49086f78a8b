// A core is a way in which queries and keys of different ring indices meet, once the Ulysses stage is done.
// Each has a file with two functions, forward and backward, and at its end the row of facts that the rest of
// the project reads (cores.h). Internal to shared/context_parallel.
#pragma once

#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/partial_results.h"

namespace cp::detail {

// The parts of the tensors on which the rank computes (AttentionSharding::compute_q, compute_kv). What is
// written has the dtype in which the caller needs it. Where latent rows travel, k is the rows, and dk their
// gradient; v and dv are absent.
struct ForwardTensors {
  Tensor q, k, v;
  Tensor out;        // written
  RowStatistic lse;  // written
};
struct BackwardTensors {
  Tensor q, k, v, out, dout;
  RowStatistic lse;
  Tensor dq, dk, dv;  // written; absent if nobody asked for it
};

// K and V come at once: the rows that the rank's queries may see (need_only), or all rows (all_gather; the
// ring with gathered blocks). Works for a ring of one, too.
void write_gathered(AttentionWriter& writer, const ForwardTensors& tensors);
void write_gathered(AttentionWriter& writer, const BackwardTensors& tensors);

// K and V blocks rotate, in one ring or in rings within a ring.
void write_ring(AttentionWriter& writer, const ForwardTensors& tensors);
void write_ring(AttentionWriter& writer, const BackwardTensors& tensors);

// Queries rotate.
void write_pass_q(AttentionWriter& writer, const ForwardTensors& tensors);
void write_pass_q(AttentionWriter& writer, const BackwardTensors& tensors);

// The rows of facts; cores.cc lists them.
extern const CoreFacts kAllGatherCore, kNeedOnlyCore;  // gathered_core.cc
extern const CoreFacts kRingCore;                      // ring_core.cc
extern const CoreFacts kPassQCore;                     // pass_q_core.cc

}  // namespace cp::detail
