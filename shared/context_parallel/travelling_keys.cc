#include "shared/context_parallel/travelling_keys.h"

#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/mask_slices.h"
#include "shared/context_parallel/trips.h"
#include "shared/placement/runs.h"

namespace cp::detail {
namespace {

// Rows that travel along the ring axis, for one Ulysses index, all ranks of its ring together.
struct CoreRows {
  std::int64_t forward = 0, backward = 0;  // of keys
  std::int64_t gradients = 0;
};

CoreRows rows_at_once(const AttentionContext& context) {
  const int n = context.sharding.ring_size();
  std::int64_t rows = 0;
  for (int user = 0; user < n; ++user) {
    const bool some = context.request.strategy.core == Core::need_only;
    const IndexSet needed = some ? needed_keys(context.request.problem, context.q_rows(user)) : IndexSet{};
    for (int home = 0; home < n; ++home) {
      if (home == user) continue;
      rows += some ? intersection_size(context.kv_rows(home), needed) : context.num_kv_rows(home);
    }
  }
  return {rows, rows, rows};
}

CoreRows core_rows(const AttentionContext& context) {
  const Strategy& strategy = context.request.strategy;
  if (context.sharding.ring_size() == 1) return {};
  switch (facts(strategy.core).rotates) {
    case Rotates::nothing:
      return rows_at_once(context);
    case Rotates::queries:
      return {};
    case Rotates::keys:
      break;
  }
  if (strategy.rotation == Strategy::Rotation::all_gather) return rows_at_once(context);
  const KeyTrips trips(context);
  const KeyTrips::Rows forward = trips.rows(1, 1),
                       backward = trips.rows(trips.outer_direction(), trips.inner_direction());
  return {forward.keys, backward.keys, backward.gradients};
}

// Bytes, but for the factor of the batch, that all ranks receive of what travels in place of keys, if a rank
// of Ulysses index u gets width(u) elements for each row, and a gradient that goes to its Ulysses group has
// so many bytes for each element.
template <class Width>
std::int64_t bytes_of(const AttentionContext& context, const CoreRows& core, const Width& width,
                      std::int64_t ulysses_gradient_bytes) {
  const AttentionRequest& request = context.request;
  const std::int64_t size = size_bytes(request.problem.dtype),
                     partial = request.strategy.input_dtype_gradients ? size : size_bytes(DType::f32);
  const bool backward = request.keep_for_backward, gradients = backward && request.options.gradients.dk;
  std::int64_t bytes = 0;
  for (int u = 0; u < context.sharding.ulysses_degree(); ++u) {
    std::int64_t arrive = 0;  // rows from the other members of the groups; they send as many gradients back
    for (int r = 0; r < context.sharding.ring_size(); ++r) {
      arrive += context.num_kv_rows(r) - context.sharding.home_kv(context.sharding.index_at(r, u)).num_rows();
    }
    bytes += width(u) * (size * (arrive + core.forward + (backward ? core.backward : 0)) +
                         (gradients ? partial * core.gradients + ulysses_gradient_bytes * arrive : 0));
  }
  return bytes;
}

}  // namespace

Strategy::Keys travelling_keys(const AttentionContext& context) {
  using enum Strategy::Keys;
  const AttentionProblem& problem = context.request.problem;
  const Strategy& strategy = context.request.strategy;
  if (!problem.has_latent() || strategy.keys != fewer_bytes) return strategy.keys == latent ? latent : heads;
  Strategy other = strategy;
  other.keys = latent;
  other.transfers = Strategy::Transfers::sm;  // which is legal or not with either
  if (refuse(problem, static_cast<int>(context.request.ranks.size()), other)) return heads;
  const CoreRows core = core_rows(context);
  std::int64_t held = 0;
  const auto kv_heads = [&](int u) {
    return context.sharding.compute_kv(context.sharding.index_at(0, u)).num_heads();
  };
  for (int u = 0; u < context.sharding.ulysses_degree(); ++u) held += kv_heads(u);
  const std::int64_t size = size_bytes(problem.dtype),
                     partial = strategy.input_dtype_gradients ? size : size_bytes(DType::f32);
  // Gradients of heads that one rank computes on are final; else they are parts of a sum, as those of rows.
  const std::int64_t of_heads = bytes_of(
      context, core, [&](int u) { return kv_heads(u) * (problem.head_dim + problem.v_head_dim); },
      held > problem.kv_heads ? partial : size);
  const std::int64_t of_rows = bytes_of(
      context, core, [&](int) { return problem.latent.dim(); }, partial);
  return of_rows < of_heads ? latent : heads;
}

}  // namespace cp::detail
