// Weights: where the tensors of a layer, of its experts and of the head lie in the flat pieces that are
// sharded as units.
//
// Matrices are [out, in], as PyTorch's Linear has them. What all tp ranks hold alike comes first, so that its
// gradients are one piece.
#pragma once

#include <cstdint>

#include "shared/fully_shard/stack.h"
#include "shared/transformer/sizes.h"

namespace cp {

struct Weight {
  std::int64_t begin = 0, rows = 0, columns = 0;
  std::int64_t numel() const { return rows * columns; }
  std::int64_t end() const { return begin + numel(); }

  View flat(const Window& piece) const { return piece.flat(begin, numel()); }
  // [out, in], as gradients and products of gradients take it.
  View matrix(const Window& piece) const { return piece.dense(begin, {rows, columns}); }
  // [in, out], as the forward pass takes it.
  View transposed(const Window& piece) const {
    return {piece.buffer, piece.offset + begin, {columns, rows}, {1, columns}, piece.advance};
  }
  // Some of the rows.
  Weight part(std::int64_t first, std::int64_t count) const {
    return {begin + first * columns, count, columns};
  }
};

struct LayerWeights {
  LayerWeights(const Transformer& model, const LocalSizes& sizes);

  Weight norm1, norm2, q_norm, k_norm, router;  // vectors have one row; those that the model lacks are empty
  std::int64_t replicated = 0;                  // elements up to here are equal on all tp ranks
  Weight qkv, qkv_bias, out, gate_up, down;     // qkv: the rows of q, then k, then v; gate_up: gate, then up
  std::int64_t numel = 0;
};

// Of an ep rank's experts: the gate and up of all of them, then the downs.
struct ExpertWeights {
  ExpertWeights(const Transformer& model, const LocalSizes& sizes);

  Weight gate_up(std::int64_t expert) const { return gate_up_.part(expert * 2 * columns_, 2 * columns_); }
  Weight down(std::int64_t expert) const { return down_.part(expert * hidden_, hidden_); }
  std::int64_t numel = 0;  // 0 without experts

 private:
  std::int64_t hidden_, columns_;
  Weight gate_up_, down_;
};

// The final norm and, unless it is the embedding's, the head.
struct HeadWeights {
  HeadWeights(const Transformer& model, const LocalSizes& sizes, bool own_table);

  Weight norm, table;
  std::int64_t numel = 0;
};

}  // namespace cp
