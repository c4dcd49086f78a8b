// Sizes of a model's pieces on one rank of a layout: what memory, bounds and the counts of tests are computed
// from.
#pragma once

#include <cstdint>

#include "shared/transformer/parallel_layout.h"

namespace cp {

struct LocalSizes {
  // Rows of activations; tokens = micro_batch x rows.
  std::int64_t rows = 0;    // of a sequence, on the cp rank that has most
  std::int64_t tokens = 0;  // of a micro-batch, on such a rank
  // Of them, on one tp rank between tensor-parallel regions: ceil(tokens / row_ranks()).
  std::int64_t tokens_tp = 0;
  std::int64_t chunk_tokens = 0;  // at once under the head and the loss
  std::int64_t mlp_tokens = 0;    // at once in a dense MLP

  std::int64_t q_width = 0, kv_width = 0;  // heads of a tp rank x head_dim
  std::int64_t columns = 0;                // of a tp rank's (dense or expert's) MLP
  std::int64_t vocab = 0;                  // of a tp rank: ceil(vocab / tp)
  std::int64_t experts = 0;                // of an ep rank; 0 without
  std::int64_t expert_tokens = 0;          // that a rank's experts compute together: their capacity

  // Parameters of a tp (and ep) rank before they are sharded.
  std::int64_t dense_layer = 0, expert_layer = 0, embedding = 0, head = 0, final_norm = 0;
  std::int64_t layer() const { return dense_layer + expert_layer; }
};
LocalSizes local_sizes(const Transformer& model, const Workload& workload, const ParallelLayout& layout);

// Queries on the cp rank that has most of them at home.
std::int64_t most_home_rows(const AttentionProblem& problem, int cp, const Strategy& strategy);

}  // namespace cp
