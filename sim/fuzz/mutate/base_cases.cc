#include "sim/fuzz/mutate/base_cases.h"

#include <algorithm>
#include <string>
#include <vector>

#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"

namespace cp::sim {
namespace {

std::string documents(Numbers& draws, std::int64_t kv_len) {
  std::vector<std::int64_t> ends = {0};
  for (std::int64_t d = draws.in(1, 4); d > 0; --d) ends.push_back(draws.in(0, kv_len));
  if (draws.one_in(2)) ends.back() = kv_len;
  std::sort(ends.begin(), ends.end());
  return join(ends, "/");
}

std::string mesh_of_cp(Numbers& draws, std::int64_t cp) {
  if (!draws.one_in(4)) return str("cp=", cp);
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < cp; ++rank) ranks.push_back(rank);
  for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[draws.below(i)]);
  return str("cp=", cp, "@", join(ranks, "/"));
}

// ---- redistributions ----

// Even: equal chunks, which collectives with equal counts move.
std::string split(Numbers& draws, bool even, std::int64_t parts, std::int64_t length) {
  if (even) return "";
  switch (draws.below(6)) {
    case 0:
      return ",balanced";
    case 1:
      return ",head_tail";
    case 2:
      return str(",striped:", draws.in(1, 3));
    case 3: {
      std::vector<std::int64_t> cuts = {0, length};
      for (std::int64_t i = 1; i < parts; ++i) cuts.push_back(draws.in(0, length));
      std::sort(cuts.begin(), cuts.end());
      std::vector<std::int64_t> sizes;
      for (std::size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
      return str(",sizes:", join(sizes, "/"));
    }
    default:
      return "";
  }
}

struct Style {
  bool partials = true;
  std::string op;  // one for the whole layout
  bool even = false;
};
std::string placement(Numbers& draws, std::int64_t parts, const std::vector<std::int64_t>& shape,
                      const Style& style) {
  const std::size_t kind = draws.below(style.partials ? 6 : 5);
  if (kind == 4) return "R";
  if (kind == 5) return str("P(", style.op, ")");
  const std::size_t dim = draws.below(shape.size());
  return str("S(", dim, split(draws, style.even, parts, shape[dim]), ")");
}
std::vector<std::string> placements(Numbers& draws, const std::vector<std::int64_t>& axes,
                                    const std::vector<std::int64_t>& shape, const Style& style) {
  std::vector<std::string> texts;
  for (const std::int64_t size : axes) texts.push_back(placement(draws, size, shape, style));
  return texts;
}

std::string mesh_text(const std::vector<std::int64_t>& axes, std::int64_t first_rank) {
  std::vector<std::string> texts;
  std::int64_t ranks = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    texts.push_back(str(static_cast<char>('a' + i), "=", axes[i]));
    ranks *= axes[i];
  }
  if (first_rank == 0) return join(texts);
  std::vector<std::int64_t> list;
  for (std::int64_t rank = 0; rank < ranks; ++rank) list.push_back(first_rank + rank);
  return str(join(texts), "@", join(list, "/"));
}

std::vector<std::int64_t> mesh_axes(Numbers& draws) {
  std::vector<std::int64_t> axes;
  std::int64_t ranks = 1;
  for (std::int64_t left = draws.in(1, 3); left > 0; --left) {
    const std::int64_t size = draws.in(left == 1 && ranks == 1 ? 2 : 1, 4);
    if (ranks * size > 8) continue;
    axes.push_back(size);
    ranks *= size;
  }
  return axes;
}

}  // namespace

proto::Attention draw_base_attention(Numbers& draws, std::string_view strategy) {
  proto::Attention job;
  const bool two_levels = has_inner_rings(strategy) || is_hybrid(strategy);
  const std::int64_t cp =
      two_levels ? draws.of<std::int64_t>({4, 4, 6}) : draws.of<std::int64_t>({2, 3, 3, 4});
  job.set_mesh(mesh_of_cp(draws, cp));
  job.set_strategy(std::string(strategy));
  const std::string target = draws.of<const char*>({"host", "host", "sm80", "sm90", "sm100", "sm120"});
  job.set_target(target);
  const bool fused = target != "host" && !draws.one_in(4);  // where the library takes it
  // The fields below are drawn each by itself. What does not fit together cannot be planned, and the caller
  // draws again.
  const std::int64_t kv_len = draws.in(1, 24);
  job.set_seq_len(draws.one_in(2) ? kv_len : draws.in(1, 24));
  job.set_kv_len(kv_len);
  job.set_batch(draws.of<std::int64_t>({1, 1, 2}));
  const std::int64_t kv_heads = draws.of<std::int64_t>({1, 2, 2, 3});
  const std::int64_t groups = strategy == "ulysses" || is_hybrid(strategy)
                                  ? draws.of<std::int64_t>({2, 3})
                                  : draws.of<std::int64_t>({1, 1, 2});
  job.set_kv_heads(kv_heads);
  job.set_q_heads(kv_heads * groups);
  job.set_head_dim(fused ? 8 : draws.of<std::int64_t>({1, 3, 4}));
  job.set_v_head_dim(draws.one_in(4) ? (fused ? 16 : 2) : job.head_dim());
  job.set_dtype(fused ? draws.of({proto::f16, proto::bf16})
                      : draws.of({proto::f32, proto::f32, proto::bf16, proto::f16}));
  job.set_format(draws.of<const char*>({"bshd", "bnsd", "sbhd"}));
  job.set_causal(!draws.one_in(3));
  if (draws.one_in(3)) job.set_window(draws.in(1, 12));
  if (draws.one_in(6)) job.set_query_offset(draws.in(-8, 24));
  if (draws.one_in(3)) {
    std::string text = documents(draws, kv_len);
    if (job.batch() == 2 && draws.one_in(2)) text += str(";", documents(draws, kv_len));
    job.set_documents(text);
  }
  if (draws.one_in(6)) job.set_softmax_scale(0.25);
  job.set_balance(draws.of<const char*>({"contiguous", "head_tail", "head_tail", "striped:1", "striped:3",
                                         "cost:2", "head_tail_exchange", "per_document:head_tail"}));
  if (two_levels) job.set_axis_order(draws.of<const char*>({"ulysses_inner", "ring_inner"}));
  if (strategy == "ring") job.set_rotation(draws.of<const char*>({"exchange", "exchange", "all_gather"}));
  if (draws.one_in(4)) job.set_dkv_dtype("input");
  if (draws.one_in(4)) job.set_merge_dtype("input");
  job.set_send_empty(draws.one_in(4));
  if (draws.one_in(5)) job.set_lse("computed");
  job.set_backward(!draws.one_in(4));
  if (job.backward() && draws.one_in(4))
    job.set_gradients(draws.of<const char*>({"dq", "dk,dv", "dv", "dq,dk"}));
  job.set_seed(draws.next() >> 32);
  return job;
}

proto::Redistribute draw_base_redistribution(Numbers& draws) {
  proto::Redistribute job;
  const std::vector<std::int64_t> axes = mesh_axes(draws);
  const std::int64_t first_rank = draws.one_in(8) ? draws.in(1, 3) : 0;
  job.set_mesh(mesh_text(axes, first_rank));
  std::vector<std::int64_t> to_axes = axes;
  if (draws.one_in(5)) {
    to_axes = mesh_axes(draws);
    job.set_to_mesh(mesh_text(to_axes, draws.one_in(2) ? draws.in(0, 4) : first_rank));
  }
  const bool even = draws.one_in(2);
  std::vector<std::int64_t> shape;
  for (std::int64_t dims = draws.in(1, 3); dims > 0; --dims)
    shape.push_back(even ? draws.of<std::int64_t>({8, 12, 24}) : draws.in(1, 9));
  job.set_shape(join(shape, "x"));
  job.set_dtype(draws.of({proto::f32, proto::f32, proto::bf16, proto::f16, proto::i32, proto::i64}));
  const std::string op = draws.of<const char*>({"sum", "sum", "sum", "avg", "min", "max", "product"});
  const std::vector<std::string> from = placements(draws, axes, shape, {true, op, even});
  const Style style{draws.one_in(3), op, even};
  std::vector<std::string> to;
  if (even && to_axes == axes) {  // another placement on one axis: mostly a single collective
    to = from;
    const std::size_t axis = draws.below(axes.size());
    for (int tries = 0; tries < 4 && to[axis] == from[axis]; ++tries)
      to[axis] = placement(draws, axes[axis], shape, style);
  } else {
    to = placements(draws, to_axes, shape, style);
  }
  job.set_from(join(from));
  job.set_to(join(to));
  job.set_objective(draws.of({proto::Redistribute::time, proto::Redistribute::bytes}));
  if (draws.one_in(3)) job.set_max_memory_factor(draws.of({0.5, 2.0, 4.0}));
  if (draws.one_in(6)) job.set_travel_dtype(draws.of({proto::f32, proto::bf16}));
  job.set_target(draws.of<const char*>({"host", "host", "sm80", "sm90", "sm100"}));
  job.set_gradient(draws.of({proto::Redistribute::forward, proto::Redistribute::forward,
                             proto::Redistribute::adjoint, proto::Redistribute::replicated}));
  job.set_seed(draws.next() >> 32);
  return job;
}

proto::FuzzCase draw_base_case(Numbers& draws) {
  proto::FuzzCase job;
  if (draws.one_in(4)) {
    *job.mutable_redistribute() = draw_base_redistribution(draws);
  } else {
    *job.mutable_attention() = draw_base_attention(draws, draws.of(strategy_names()));
  }
  return job;
}

}  // namespace cp::sim
