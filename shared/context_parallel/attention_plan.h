// Attention over a sequence that is split across ranks, written down as plans: one forward and one backward
// plan for each cp rank.
//
// Buffers of the caller, by name; `part` is what AttentionSharding says of the rank. Home tensors are dense in
// the problem's format and dtype. What a rank computes on lies dense as [rows, batch, heads, dim] (rows
// outermost: a block of rows is contiguous whatever the batch); lse as [batch, heads, rows], f32.
//
//   forward   in   q (home_q), k, v (home_kv)
//             out  out (home_q), lse (home_q)
//                  kept for a backward pass, where it computes on other parts than those at home:
//                  saved_q, saved_out, saved_lse (compute_q) with ulysses_degree > 1 or head_tail_exchange,
//                  saved_k, saved_v (compute_kv) with ulysses_degree > 1
//   backward  in   dout (home_q), saved_q, saved_out, saved_lse, saved_k, saved_v where forward kept them,
//                  else q, out, lse, k, v
//             out  dq (home_q), dk, dv (home_kv): those that are asked for
//
// Where nobody wants lse at home (LsePlace::computed) it stays where it was computed: `lse` is compute_q in both passes, and there is no
// saved_lse.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/context_parallel/sharding.h"
#include "shared/context_parallel/strategy.h"
#include "shared/plan/plan.h"

namespace cp {

enum class AttentionPass : std::uint8_t { forward, backward };

// Which gradients the backward pass computes, at least one of them: those of inputs that are not frozen (PyTorch's grad_input_mask). What
// serves the others alone is left out: buffers, kernels, transfers.
struct Gradients {
  bool dq = true, dk = true, dv = true;
  bool operator==(const Gradients&) const = default;
};
std::string to_string(const Gradients& gradients);  // "dq,dk,dv"
Gradients parse_gradients(
    std::string_view text);  // throws InvalidInput for another name, one that comes twice, and none

// Of which rows and heads a rank has lse after the forward pass: as of out (merging, z-loss), or where it was computed, which is all that
// a backward pass needs and saves the way home: 4 bytes for each row and head.
enum class LsePlace : std::uint8_t { home, computed };
std::string_view name(LsePlace place);  // "home"

struct AttentionOptions {
  Gradients gradients;
  LsePlace lse = LsePlace::home;
  bool operator==(const AttentionOptions&) const = default;
};

struct AttentionRequest {
  AttentionProblem problem;
  std::vector<Rank> ranks;  // the cp ranks, in order
  Strategy strategy;
  bool keep_for_backward = true;  // forward: write the saved_ buffers
  AttentionOptions options = {};
};

// Whether plans for the target call its fused attention for what it takes of the masks: it takes the problem's dtype and dims. Then
// steps are cut into calls (attention_calls.h), partial results are rounded to the problem's dtype before they are added up, and
// pass_q's queries take out along, backward, instead of delta.
bool uses_fused_attention(const AttentionProblem& problem, AttentionPass pass, const Target& target);

// The plan of one of the ranks: a pure function of its arguments. Throws InvalidInput with the refusal's reason
// for what is not legal (refuse()), for a repeated rank, where `self` is none of the ranks, and for a request of no gradient at all.
Plan attention_plan(const AttentionRequest& request, AttentionPass pass, Rank self,
                    const Target& target = host_target());

// The plans of all ranks, in ascending order of the ranks. Cheaper than one by one.
std::vector<Plan> attention_plans(const AttentionRequest& request, AttentionPass pass,
                                  const Target& target = host_target());

}  // namespace cp
