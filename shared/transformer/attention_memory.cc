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
  // home. Of heads that ranks trade, each has the same ones of all rows.
  const std::int64_t traded = layout_.micro_batch * (workload_.seq_len / layout_.cp);
  kept.rest = tokens * (sizes_.q_width + sizes_.out_width) * width_;
  if (ulysses || exchange) kept.rest += (ulysses ? traded : tokens) * sizes_.out_width * width_;
  kept.rest += (ulysses ? traded : tokens) * kept_kv_width() * width_;
  kept.rest += (ulysses ? traded : tokens) * sizes_.q_heads * kBytesOfF32;  // lse
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
  if (use_ == LatentUse::absorbed)  // queries behind the weight of keys, and outputs before that of values
    return tokens * sizes_.q_heads * (latent.kv_row() + latent.kv_rank);
  // Queries and outputs, or their gradients; and those of keys and values that were expanded before.
  const std::int64_t expanded =
      training_ && use_ == LatentUse::nothing ? sizes_.kv_width + sizes_.v_width : 0;
  return tokens * (sizes_.q_width + sizes_.out_width + expanded);
}

std::int64_t AttentionMemory::workspace_bytes() const {
  const Strategy& strategy = layout_.strategy;
  const int ring = layout_.cp / strategy.ulysses_degree;
  const auto claim = facts(strategy.core).least_workspace_bytes;
  // Nothing is claimed of what latent rows are expanded to, where some masks are cut by windows or documents,
  // and of serving.
  const auto is_cut = [](const LayerKind& kind) { return kind.window || kind.chunk; };
  if (layout_.cp == 1 || ring == 1 || claim == nullptr || use_ != LatentUse::nothing || !training_ ||
      workload_.has_documents() || std::any_of(model_.kinds.begin(), model_.kinds.end(), is_cut))
    return 0;
  const std::int64_t rows = layout_.micro_batch * (workload_.seq_len / layout_.cp);
  return claim(strategy, {ring, rows * kept_kv_width(), width_, training_});
}

std::int64_t AttentionMemory::cached_elements(int stage) const {
  const auto [first, count] = layers_of_stage(model_, layout_, stage);
  const std::vector<std::int64_t> layers = layers_of_kinds(model_, first, count);
  std::int64_t rows = 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    if (model_.kinds[kind].mixer != Mixer::attention) continue;
    const AttentionProblem problem = attention_problem(model_, workload_, layout_, model_.kinds[kind]);
    rows += layers[kind] * (problem.kv_len / layout_.cp);  // whoever has one more may have fewer queries
  }
  // A latent row is cached as it is, once for all heads; tp ranks have it alike.
  const std::int64_t width = model_.latent ? model_.latent->kv_row() : 2 * sizes_.kv_width;
  return layout_.micro_batch * rows * width;
}

}  // namespace cp
