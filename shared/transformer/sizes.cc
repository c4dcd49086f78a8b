#include "shared/transformer/sizes.h"

#include <algorithm>
#include <cmath>

namespace cp {
namespace {

std::int64_t most_ring_rows(std::int64_t length, int ring, const Balance& balance) {
  switch (balance.kind) {
    case Balance::Kind::head_tail: {
      // Of 2 * ring parts the first `longer` ones have a row more; rank 0 has parts 0 and 2 * ring - 1, and so on.
      const std::int64_t parts = 2 * std::int64_t{ring}, longer = length % parts;
      return 2 * (length / parts) + (longer == 0 ? 0 : longer <= ring ? 1 : 2);
    }
    case Balance::Kind::striped:
    case Balance::Kind::cost: {
      const std::int64_t whole = length / balance.block, turns = whole / ring, left = whole % ring;
      return turns * balance.block + (left > 0 ? balance.block : length % balance.block);
    }
    case Balance::Kind::contiguous:
    case Balance::Kind::head_tail_exchange:
      break;
  }
  return ceil_div(length, ring);
}

}  // namespace

std::int64_t most_home_rows(std::int64_t length, int cp, const Strategy& strategy) {
  if (cp == 1) return length;
  return ceil_div(most_ring_rows(length, cp / strategy.ulysses_degree, strategy.balance),
                  strategy.ulysses_degree);
}

LocalSizes local_sizes(const Transformer& model, const Workload& workload, const ParallelLayout& layout) {
  LocalSizes sizes;
  const int tp = layout.tp;
  const bool decodes = workload.phase == Phase::decode;
  const std::int64_t length = decodes ? 1 : workload.seq_len - workload.cached;
  sizes.rows = most_home_rows(length, layout.cp, layout.strategy);
  sizes.tokens = layout.micro_batch * sizes.rows;
  sizes.tokens_tp = ceil_div(sizes.tokens, tp);
  sizes.chunk_tokens = ceil_div(sizes.tokens, layout.loss_chunks);

  const std::int64_t hidden = model.hidden;
  sizes.q_width = model.q_width() / tp;
  sizes.kv_width = std::max<std::int64_t>(1, model.kv_heads / tp) * model.head_dim;
  sizes.vocab = ceil_div(model.vocab, tp);
  const std::int64_t projections = hidden * (2 * sizes.q_width + 2 * sizes.kv_width),
                     biases = model.qkv_bias ? sizes.q_width + 2 * sizes.kv_width : 0,
                     norms = 2 * hidden + (model.qk_norm ? 2 * model.head_dim : 0);
  sizes.dense_layer = projections + biases + norms;
  if (model.experts) {
    sizes.columns = model.experts->intermediate / tp;
    sizes.experts = model.experts->count / layout.ep;
    sizes.expert_layer = sizes.experts * 3 * hidden * sizes.columns;
    sizes.dense_layer += hidden * model.experts->count;
    const double share = static_cast<double>(sizes.tokens * model.experts->top_k) / layout.ep;
    sizes.expert_tokens = layout.ep * static_cast<std::int64_t>(std::ceil(share * workload.expert_imbalance));
  } else {
    sizes.columns = model.intermediate / tp;
    sizes.dense_layer += 3 * hidden * sizes.columns;
  }
  sizes.embedding = sizes.vocab * hidden;
  sizes.head = model.tied_embeddings ? 0 : sizes.vocab * hidden;
  sizes.final_norm = hidden;
  return sizes;
}

}  // namespace cp
