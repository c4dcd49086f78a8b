// Attention over a sequence that is split across ranks, written down as plans: one forward and one backward
// plan for each cp rank.
//
// Buffers of the caller, by name; `part` is what AttentionSharding says of the rank. Home tensors are dense in
// the problem's format and dtype. What a rank computes on lies dense as [rows, batch, heads, dim] (rows
// outermost: a block of rows is contiguous whatever the batch); lse as [batch, heads, rows], f32.
//
//   forward   in   q (home_q), k, v (home_kv)
//             out  out (home_q), lse (compute_q)
//                  kept for a backward pass, where it computes on other parts than those at home:
//                  saved_q, saved_out (compute_q) with ulysses_degree > 1 or head_tail_exchange,
//                  saved_k, saved_v (compute_kv) with ulysses_degree > 1
//   backward  in   dout (home_q), lse (compute_q), saved_q, saved_out, saved_k, saved_v where forward kept them,
//                  else q, out, k, v
//             out  dq (home_q), dk, dv (home_kv)
//
// lse never travels home: only the backward pass needs it, where the attention was computed.
#pragma once

#include <string_view>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/context_parallel/sharding.h"
#include "shared/context_parallel/strategy.h"
#include "shared/plan/plan.h"

namespace cp {

enum class AttentionPass : std::uint8_t { forward, backward };

struct AttentionRequest {
  AttentionProblem problem;
  std::vector<Rank> ranks;  // the cp ranks, in order
  Strategy strategy;
  bool keep_for_backward = true;  // forward: write the saved_ buffers
};

// Whether plans for the target call its fused attention for what it takes of the masks: it takes the problem's dtype and dims. Then
// steps are cut into calls (attention_calls.h), partial results are rounded to the problem's dtype before they are added up, and
// pass_q's queries take out along, backward, instead of delta.
bool uses_fused_attention(const AttentionProblem& problem, AttentionPass pass, const Target& target);

// The plan of one of the ranks: a pure function of its arguments. Throws InvalidInput with the refusal's reason
// for what is not legal (refuse()), for a repeated rank, and where `self` is none of the ranks.
Plan attention_plan(const AttentionRequest& request, AttentionPass pass, Rank self,
                    const Target& target = host_target());

// The plans of all ranks, in ascending order of the ranks. Cheaper than one by one.
std::vector<Plan> attention_plans(const AttentionRequest& request, AttentionPass pass,
                                  const Target& target = host_target());

}  // namespace cp
