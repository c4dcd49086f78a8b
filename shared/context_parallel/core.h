// The cores: how queries and keys of different ring indices meet, once the Ulysses stage is done. One file
// for each, with its two functions and, at its end, the row of what the rest of the project knows of it
// (cores.h). Internal to shared/context_parallel.
#pragma once

#include "shared/context_parallel/attention_writer.h"
#include "shared/context_parallel/cores.h"

namespace cp::detail {

// The rank's parts where it computes (AttentionSharding::compute_q, compute_kv). What is written has the
// dtype in which the caller needs it.
struct ForwardTensors {
  Tensor q, k, v;
  Tensor out;        // written
  RowStatistic lse;  // written
};
struct BackwardTensors {
  Tensor q, k, v, out, dout;
  RowStatistic lse;
  Tensor dq, dk, dv;  // written; absent where nobody asked for it
};

// All K and V rows that the rank's queries may see (need_only) or that there are (all_gather; the ring with
// gathered blocks) come at once. Also for a ring of one.
void write_gathered(AttentionWriter& writer, const ForwardTensors& tensors);
void write_gathered(AttentionWriter& writer, const BackwardTensors& tensors);

// K and V blocks rotate; one ring, or rings within a ring.
void write_ring(AttentionWriter& writer, const ForwardTensors& tensors);
void write_ring(AttentionWriter& writer, const BackwardTensors& tensors);

// Queries rotate.
void write_pass_q(AttentionWriter& writer, const ForwardTensors& tensors);
void write_pass_q(AttentionWriter& writer, const BackwardTensors& tensors);

// The rows; cores.cc lists them.
extern const CoreFacts kAllGatherCore, kNeedOnlyCore;  // gathered_core.cc
extern const CoreFacts kRingCore;                      // ring_core.cc
extern const CoreFacts kPassQCore;                     // pass_q_core.cc

}  // namespace cp::detail
