// A recurrence over a sequence that is split across ranks, written down as plans: one forward and one
// backward plan for each cp rank.
//
// Buffers of the caller, by name, dense. A rank has its rows at home: those of row_layout(), in its local
// order, of all batch entries and heads.
//
//   forward   in   q, k, v, log_decay, beta
//             out  out
//                  kept for a backward pass:
//                  saved_states       scans: for each chunk that a state comes in to, in the rank's order,
//                                     [batch, value_heads, key_dim, value_dim], f32
//                  saved_transitions  scans: for each chunk that hands on what came in, [batch, value_heads,
//                                     n, n], f32
//                  saved_q, saved_k, saved_v, saved_log_decay, saved_beta
//                                     heads: of all rows, in the order of the sequence, and the rank's heads
//   backward  in   dout, saved_*; with scans also q, k, v, log_decay, beta
//             out  dq, dk, dv, dlog_decay, dbeta
//
// saved_ buffers that would have no elements are left out.
//
// A problem with a cached state has a forward plan alone, with one buffer more:
//
//   state   inout  f32; before row 0 when the plan begins, and behind the last row when it ends. With scans
//                  the rank that has row 0 at home holds it, [batch, value_heads, key_dim, value_dim], and
//                  the others have no such buffer: the final state is sent there. With heads each rank holds
//                  that of the heads that it computes, [batch, value_heads / ranks, key_dim, value_dim].
//
// Neither place depends on how many rows there are. So a prompt's plans leave the state where those of the
// next token look for it, if both are of the same ranks, and both of heads or both of scans.
#pragma once

#include <string>
#include <vector>

#include "shared/placement/layout.h"
#include "shared/plan/plan.h"
#include "shared/recurrence/chunks.h"
#include "shared/recurrence/problem.h"
#include "shared/recurrence/strategy.h"

namespace cp {

enum class RecurrencePass : std::uint8_t { forward, backward };

struct RecurrenceRequest {
  RecurrenceProblem problem;
  std::vector<Rank> ranks;  // the cp ranks, in order
  RecurrenceStrategy strategy;
  bool keep_for_backward = true;  // forward: write the saved_ buffers
};

// The layout of a [batch, seq_len, heads, dim] tensor at home, on a mesh of one axis, "cp"; where the
// strategy cuts twice, of "ring" and "ulysses".
Layout row_layout(const RecurrenceRequest& request, std::int64_t heads, std::int64_t dim, DType dtype);

// All chunks of these rows, in the order of the sequence.
std::vector<Chunk> chunks_of(const RecurrenceRequest& request);

// The elements of `state` on the rank with that index among the cp ranks. 0: it has none, or the problem has
// no cached state.
std::int64_t cached_state_numel(const RecurrenceRequest& request, int index);

// The plan of one of the ranks, a pure function of its arguments. Throws InvalidInput if the request is not
// legal, with the reason that refuse() gives, if a rank comes twice, if `self` is not among the ranks, and
// for the backward pass of a sequence with a cached state.
Plan recurrence_plan(const RecurrenceRequest& request, RecurrencePass pass, Rank self,
                     const Target& target = host_target());

// The plans of all ranks, in ascending order of the ranks.
std::vector<Plan> recurrence_plans(const RecurrenceRequest& request, RecurrencePass pass,
                                   const Target& target = host_target());

}  // namespace cp
