// Attention over a sequence that is split across ranks, written down as plans: one forward and one backward
// plan for each cp rank.
//
// Buffers of the caller, by name; `part` is what AttentionSharding says of the rank. Home tensors are dense
// in the problem's format and dtype. What a rank computes on lies dense as [rows, batch, heads, dim] (rows
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
// With Strategy::pieces, saved_q, saved_out, saved_k and saved_v hold the pieces of the heads one after the
// other, each of them dense as above.
//
// With sinks, both passes also have the input sinks [q_heads], f32, and the backward pass the output dsinks
// [q_heads], f32: what the rows and heads that the rank computes on add to the sinks' gradient. Its sum over
// the cp ranks is the gradient; it is made with those of the other parameters that all ranks hold. With
// dropout, both have the input seed, one i64 or kPlacedSeed of them (Dropout::placed), which must be the same
// on all ranks and in both passes.
//
// With latent rows, both passes have the inputs latent (home_kv, one head of rank + rope_dim elements) in
// place of k and v, and kv_up [kv_heads * (nope + v_head_dim), rank], in the problem's dtype; and the
// backward pass has the outputs dlatent (home_kv) in place of dk and dv, which are asked for together and
// stand for both, and dkv_up, f32, like kv_up: what this rank computed of the weight's gradient, whose sum
// over the cp ranks is the gradient. Where the rows travel (Strategy::keys), saved_latent (compute_kv, one
// head) takes the place of saved_k and saved_v with ulysses_degree > 1, and of latent in the backward pass:
// what other ranks' rows expand to is never kept. Where heads travel, saved_k and saved_v are as without
// latent rows. Absorbed, there is no kv_up, and no backward pass.
//
// With LsePlace::computed nobody wants lse at home, so it stays where it was computed: `lse` is compute_q in
// both passes, and there is no saved_lse.
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

// Which gradients the backward pass computes: at least one, usually those of the inputs that are not frozen
// (as PyTorch's grad_input_mask says). Buffers, kernels and transfers that serve only the others are left
// out.
struct Gradients {
  bool dq = true, dk = true, dv = true;
  bool operator==(const Gradients&) const = default;
};
std::string to_string(const Gradients& gradients);  // "dq,dk,dv"
// Throws InvalidInput for an unknown name, for a name that comes twice, and for a text without any.
Gradients parse_gradients(std::string_view text);

// For which rows and heads a rank has lse after the forward pass.
//   home       It has lse for the same rows and heads as out, as merging and a z-loss need it.
//   computed   lse stays where it was computed. A backward pass needs no more, and the way home is saved: 4
//              bytes for each row and head.
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

// What travels in place of K and V, heads or latent: as Strategy::keys says, or whichever moves fewer bytes,
// all ranks together, over the forward pass, and over both passes if keep_for_backward is set. Both passes of
// one request must have it alike. Without latent rows: heads. The request must be legal.
Strategy::Keys travelling_keys(const AttentionRequest& request);

// True if the target has fused attention that supports the problem's dtype and head sizes in this pass, and
// the problem has neither a softcap nor dropout, which no library computes as the exact kernels do. Its plans
// then use fused calls for every mask that the library supports, and exact kernels for the rest. That changes
// three things: steps are cut into calls (attention_calls.h), partial results are rounded to the problem's
// dtype before they are added up, and in the backward pass of pass_q the queries take `out` along instead of
// delta.
bool uses_fused_attention(const AttentionProblem& problem, AttentionPass pass, const Target& target);

// The plan of one of the ranks. It is a pure function of its arguments. Throws InvalidInput if the request is
// not legal (with the reason that refuse() gives), if a rank comes twice, if `self` is not among the ranks,
// if the request is for no gradient at all, and for a backward pass of absorbed queries.
Plan attention_plan(const AttentionRequest& request, AttentionPass pass, Rank self,
                    const Target& target = host_target());

// The plans of all ranks, in ascending order of the ranks. This takes less time than making them one by one.
std::vector<Plan> attention_plans(const AttentionRequest& request, AttentionPass pass,
                                  const Target& target = host_target());

}  // namespace cp
