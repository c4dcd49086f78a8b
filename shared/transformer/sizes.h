// The sizes of a model's pieces on one rank of a layout. Memory, bounds and the counts of tests are computed
// from them. All are numbers of rows or elements, not bytes.
#pragma once

#include <cstdint>

#include "shared/transformer/parallel_layout.h"

namespace cp {

struct LocalSizes {
  // Rows of activations. tokens = micro_batch x rows.
  std::int64_t rows = 0;    // of one sequence, on the cp rank that has most
  std::int64_t tokens = 0;  // of a micro-batch, on that rank
  // Those of them that one tp rank has between tensor-parallel regions: ceil(tokens / row_ranks()).
  std::int64_t tokens_tp = 0;
  std::int64_t chunk_tokens = 0;  // that head and loss take at once
  std::int64_t mlp_tokens = 0;    // that a dense MLP takes at once

  // Heads of one tp rank, and what they are wide: heads x head_dim, and with latent attention x v_head_dim.
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t q_width = 0, kv_width = 0;   // of queries, and of keys
  std::int64_t v_width = 0, out_width = 0;  // of values, and of attention's output
  std::int64_t up_width = 0;                // of what latent rows of keys and values are projected to
  std::int64_t gate_width = 0;              // of the gates of attention's output; 0: it has none
  Recurrence recurrence;                    // with the heads of one tp rank; no heads: no layer has one
  std::int64_t channels = 0;                // elements of hidden of one tp rank, where a mixer deals them
  std::int64_t dense_columns = 0, shared_columns = 0;  // of one tp rank
  // Of the MLP that a layer computes all rows with: the dense one, or the shared one beside experts. 0: there
  // is none.
  std::int64_t columns(Mlp mlp) const {
    return mlp == Mlp::dense ? dense_columns : mlp == Mlp::experts ? shared_columns : 0;
  }
  std::int64_t vocab = 0;                // on one tp rank: ceil(vocab / tp)
  std::int64_t experts = 0;              // of a layer on one ep rank; 0 if the model has none
  std::int64_t expert_columns = 0;       // of one expert on one tp rank
  std::int64_t expert_bias_columns = 0;  // of the bias of its output on one tp rank; 0: it has none
  std::int64_t expert_tokens = 0;        // rows that all experts of a rank compute together: their capacity

  // Parameters of one tp (and ep) rank before data parallelism shards them.
  ByParts<std::int64_t> layer;    // without the experts, which other ranks share
  std::int64_t expert_layer = 0;  // the experts of one layer
  std::int64_t embedding = 0, head = 0, final_norm = 0;
  std::int64_t prediction = 0;  // what a prediction layer has beside its layer; 0 if there is none
  // Of these, the parameters of tensors below the layout's threshold, which every rank keeps whole; of the
  // head's those of the norm, too.
  ByParts<std::int64_t> small_layer;
  std::int64_t small_experts = 0, small_embedding = 0, small_head = 0, small_prediction = 0;
};
LocalSizes local_sizes(const Transformer& model, const Workload& workload, const ParallelLayout& layout);

// The number of queries at home on the cp rank that has most of them.
std::int64_t most_home_rows(const AttentionProblem& problem, int cp, const Strategy& strategy);

// Bytes that serving caches of one request in a layer with such a recurrence, however long the request is:
// its state in f32, and the last rows that the convolution saw (kv_cache.h).
struct RecurrentCache {
  std::int64_t state = 0, convolved = 0;
};
RecurrentCache recurrent_cache(const Recurrence& recurrence, DType dtype);

}  // namespace cp
