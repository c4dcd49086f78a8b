#include "shared/transformer/attention_memory.h"

#include <algorithm>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/cores.h"
#include "shared/transformer/layer_loops.h"

namespace cp {
namespace {

constexpr std::int64_t kBytesOfF32 = 4;

}  // namespace

AttentionMemory::AttentionMemory(const Transformer& model, const Workload& workload,
                                 const ParallelLayout& layout, const LocalSizes& sizes)
    : model_(model),
      workload_(workload),
      layout_(layout),
      sizes_(sizes),
      use_(latent_use(model, workload, layout)),
      width_(size_bytes(workload.dtype)),
      training_(workload.phase == Phase::training) {}

LayerKept AttentionMemory::kept() const {
  const std::int64_t tokens = sizes_.tokens;
  const bool ulysses = ulysses_degree() > 1;
  const bool exchange = layout_.cp > 1 && layout_.strategy.balance.kind == Balance::Kind::head_tail_exchange;
  LayerKept kept;
  // q and out, k and v or latent rows, with copies where attention computes on other parts than those at
  // home.
  const std::int64_t q_copies = ulysses || exchange ? 3 : 2;
  const std::int64_t q_and_out = sizes_.q_width + (q_copies - 1) * sizes_.out_width;
  kept.rest = tokens * (q_and_out + kept_kv_width()) * width_;
  kept.rest += tokens * sizes_.q_heads * kBytesOfF32;  // lse
  if (model_.latent) {
    const std::int64_t of_q = sizes_.tokens_tp * model_.latent->q_rank * width_,
                       of_kv = sizes_.tokens_tp * model_.latent->kv_row() * width_;
    // Without their norms, and with these, unless attention keeps the rows itself.
    kept.rest += of_q + of_kv;
    kept.cheap += of_q + (use_ == LatentUse::nothing ? of_kv : 0);
  }
  if (model_.qk_norm) kept.rest += tokens * (sizes_.q_width + sizes_.kv_width) * width_;  // before the norms
  // What these add up over tp ranks, two numbers in f32 of each row.
  if (model_.qk_norm_of_all_heads && layout_.tp > 1) kept.rest += tokens * 2 * kBytesOfF32;
  // The gates, and what they were multiplied with gives.
  kept.rest += tokens * sizes_.gate_width * width_, kept.cheap += tokens * sizes_.gate_width * width_;
  return kept;
}

// At least one.
std::int64_t AttentionMemory::computed_heads() const {
  const std::int64_t q_heads = ceil_div(sizes_.q_heads, ulysses_degree());
  return ceil_div(q_heads, sizes_.q_heads / sizes_.kv_heads);
}

std::int64_t AttentionMemory::kept_kv_width() const {
  if (rows_travel() || use_ == LatentUse::absorbed) return ulysses_degree() * model_.latent->kv_row();
  return ulysses_degree() * computed_heads() * (model_.head_dim + model_.v_head_dim());
}

std::int64_t AttentionMemory::elements_inside() const {
  const std::int64_t tokens = sizes_.tokens;
  if (!model_.latent) {
    // Gradients have such sums, too.
    const std::int64_t sums = model_.qk_norm_of_all_heads && layout_.tp > 1 ? 2 * kBytesOfF32 / width_ : 0;
    return tokens * (2 * (sizes_.q_width + sizes_.kv_width) + sizes_.gate_width + sums);
  }
  const Latent& latent = *model_.latent;
  const std::int64_t row = latent.q_rank + latent.kv_row(),
                     rows = 2 * tokens * row + 2 * sizes_.tokens_tp * row;
  const std::int64_t qs = tokens * 2 * sizes_.q_width;
  switch (use_) {
    case LatentUse::nothing:
      return qs + tokens * (sizes_.kv_width + sizes_.v_width + sizes_.up_width) + rows;
    case LatentUse::rows: {
      if (!training_) return qs + tokens * sizes_.out_width + rows;
      // The gradient of kv_up is made in f32, and rounded where it is added to one in another dtype.
      const std::int64_t up = sizes_.up_width * latent.kv_rank;
      const bool adds = layout_.sharding_size() == 1 || layout_.keeps_whole_gradients();
      const bool rounds = adds && workload_.gradient_dtype == workload_.dtype && width_ < kBytesOfF32;
      return qs + rows + up * kBytesOfF32 / width_ + (rounds ? up : 0);
    }
    case LatentUse::absorbed:
      // Queries before and behind the weight of keys, outputs before and behind that of values.
      return tokens *
                 (sizes_.q_width + sizes_.q_heads * (latent.kv_row() + latent.kv_rank) + sizes_.out_width) +
             rows;
  }
  return 0;
}

std::int64_t AttentionMemory::expanded_bytes(std::int64_t rows, std::int64_t heads) const {
  const std::int64_t pair = model_.head_dim + model_.up_head_dim();
  return rows * heads *
         (pair * width_ * (training_ ? 2 : 1) + (training_ ? model_.latent->rope_dim * kBytesOfF32 : 0));
}

std::int64_t AttentionMemory::sink_bytes(std::int64_t summed) const {
  if (!model_.sinks) return 0;
  // The gradient may be rounded where it is added to others.
  const std::int64_t values = use_ == LatentUse::absorbed ? model_.latent->kv_rank : model_.v_head_dim();
  return 3 * sizes_.q_heads * kBytesOfF32 + values * width_ +
         (width_ < kBytesOfF32 ? summed * kBytesOfF32 : 0);
}

std::int64_t AttentionMemory::cached_rows() const {
  return training_ ? sizes_.tokens : layout_.micro_batch * ceil_div(workload_.seq_len, layout_.cp);
}

std::int64_t AttentionMemory::workspace_bytes() const {
  const bool absorbed = use_ == LatentUse::absorbed;
  const std::int64_t q_width =
      absorbed ? sizes_.q_heads * model_.latent->kv_row() : std::max(sizes_.q_width, sizes_.out_width);
  const std::int64_t q = sizes_.tokens * q_width,
                     kv = cached_rows() * kept_kv_width();  // K and V of a rank, or its latent rows
  const std::int64_t delta = training_ ? sizes_.tokens * sizes_.q_heads * kBytesOfF32 : 0;
  // Where heads travel, or nothing does, rows are expanded at home.
  const std::int64_t at_home =
      use_ == LatentUse::rows && !rows_travel() ? expanded_bytes(cached_rows(), sizes_.kv_heads) : 0;
  if (layout_.cp == 1) return delta + at_home + sink_bytes(q);
  const int ulysses = layout_.strategy.ulysses_degree, ring = layout_.cp / ulysses;
  const auto of = [&](const Strategy& strategy, int blocks) {
    // Of what comes in pieces, one is computed on while the next one travels.
    const std::int64_t pieces = strategy.pieces, at_once = std::min<std::int64_t>(2, pieces);
    const auto in_flight = [&](std::int64_t of_all) { return of_all * at_once / pieces; };
    // Packing on both sides of an all-to-all, and the gradients of what was kept.
    std::int64_t bytes =
        delta + at_home + in_flight(ulysses > 1 ? (2 * (q + kv) + (training_ ? q + kv : 0)) * width_ : 0);
    if (use_ == LatentUse::rows && rows_travel()) {
      // Of a block that arrives, or of all of them.
      const bool gathers = ring > 1 && facts(strategy.core).rotates == Rotates::nothing;
      bytes += expanded_bytes(ulysses * cached_rows() * (gathers ? blocks : 1), computed_heads());
    }
    if (ring == 1) return bytes + sink_bytes(q);
    // What goes round is merged block by block, in f32, whether there are sinks or not.
    bytes += sink_bytes(facts(strategy.core).rotates == Rotates::nothing ? q : 0);
    return bytes + facts(strategy.core)
                       .workspace_bytes(strategy, {blocks, in_flight(q), in_flight(kv), width_, training_});
  };
  const std::int64_t all = of(layout_.strategy, ring);
  return layout_.window_core ? std::max(all, of(window_strategy(layout_), blocks_seen(ring))) : all;
}

// Of the keys and values of all ranks, as many blocks of a rank's rows as layers with a window or a chunk
// need: their own, and those that a window reaches before each of two parts.
int AttentionMemory::blocks_seen(int ring) const {
  std::int64_t reach = 0;
  for (const LayerKind& kind : model_.kinds) {
    const AttentionProblem problem = attention_problem(model_, workload_, layout_, kind);
    if (problem.window || problem.chunk)
      reach = std::max(reach, std::min(problem.window.value_or(workload_.seq_len),
                                       problem.chunk.value_or(workload_.seq_len)));
  }
  return static_cast<int>(
      std::min<std::int64_t>(ring, 1 + ceil_div(2 * reach, std::max<std::int64_t>(1, sizes_.rows))));
}

std::int64_t AttentionMemory::cached_elements(int stage) const {
  const auto [first, count] = layers_of_stage(model_, layout_, stage);
  const std::vector<std::int64_t> layers = layers_of_kinds(model_, first, count);
  std::int64_t rows = 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    if (model_.kinds[kind].mixer != Mixer::attention) continue;
    const AttentionProblem problem = attention_problem(model_, workload_, layout_, model_.kinds[kind]);
    rows += layers[kind] * ceil_div(problem.kv_len, layout_.cp);
  }
  // A latent row is cached as it is, once for all heads; tp ranks have it alike.
  const std::int64_t width = model_.latent ? model_.latent->kv_row() : 2 * sizes_.kv_width;
  return layout_.micro_batch * rows * width;
}

}  // namespace cp
