// Weights say where the tensors of a layer, of its experts and of the head begin in the flat pieces that are
// sharded as units.
//
// Matrices are [out, in], as in PyTorch's Linear. Tensors that all tp ranks hold alike come first, so that
// their gradients are one piece, which one AllReduce over the tp ranks adds up.
//
// Where a layout has a threshold, tensors with fewer elements come before all others, since every rank keeps
// them whole (ShardedUnit::replicated); of both, those that all tp ranks hold alike come first. What is one
// product counts as one tensor, as a tp rank has it: q, k and v; gate and up; the experts of a rank.
#pragma once

#include <array>
#include <cstdint>

#include "shared/fully_shard/stack.h"
#include "shared/transformer/sizes.h"

namespace cp {

struct Weight {
  std::int64_t begin = 0, rows = 0, columns = 0;
  std::int64_t numel() const { return rows * columns; }
  std::int64_t end() const { return begin + numel(); }

  View flat(const Window& piece) const { return piece.flat(begin, numel()); }
  // [out, in]: as a weight's gradient is written, and as the product for the input's gradient takes it.
  View matrix(const Window& piece) const { return piece.dense(begin, {rows, columns}); }
  // [in, out]: as the forward pass takes it. No data moves; only the strides are exchanged.
  View transposed(const Window& piece) const {
    return {piece.buffer, piece.at(begin), {columns, rows}, {1, columns}, piece.advance};
  }
  // Rows first .. first + count - 1.
  Weight part(std::int64_t first, std::int64_t count) const {
    return {begin + first * columns, count, columns};
  }
};

// Tensors that stand one behind the other among those below the threshold, and among the others.
using WeightRanges = std::array<Weight, 2>;

// Of a layer with these parts.
struct LayerWeights {
  LayerWeights() = default;
  LayerWeights(const Transformer& model, const LocalSizes& sizes, LayerParts parts,
               std::int64_t threshold = 0);

  // A vector is one row; what the layer lacks is empty.
  Weight norm1;
  Weight norm1_behind, norm2_behind;  // of the outputs of the mixer and of the MLP
  Weight out_bias;                    // of the mixer's projection out
  // Of latent attention: what makes the latent rows, and their norms. kv_down: the latent row, then the part
  // of the key that is rotated.
  Weight q_down, q_latent_norm, kv_down, kv_latent_norm;
  // norm2: before the MLP; a parallel block has norm1 alone. q_norm and k_norm are of one head, or of all
  // heads of the rank; then they stand behind qkv_bias.
  Weight norm2, q_norm, k_norm;
  Weight head_norm;  // of a gated delta net's outputs, for all heads
  Weight router, router_bias;
  Weight shared_gate;  // one row, whose product with the layer's rows gates the shared MLP
  // What all tp ranks hold alike; and of that what stands behind the norms and what makes latent rows.
  WeightRanges replicated, replicated_behind_norms;
  Weight qkv, qkv_bias;  // qkv: the rows of q, then k, then v, then the gates of the output
  Weight sinks;          // of attention: a number for each query head of the rank
  Weight q_up, kv_up;    // of latent attention, in place of qkv
  // Of a short convolution. projection: the rows of B, then x, then C. convolution: one row for each column.
  // Of a recurrence. projection: the rows of q, k and v, then the gates of the output, then the numbers.
  // convolution: one row for each element of q, k and v. numbers: the rate of each head's decay, and the time
  // step's bias. skip: with which v itself is added to the output of Mamba-2. row_norm: of its outputs, one
  // for each element.
  Weight projection, projection_bias, convolution, convolution_bias, numbers, skip, row_norm;
  Weight out;  // of the mixer
  // Of the dense MLP, or of the shared one beside experts; gate_up: gate, then up; or up alone.
  Weight gate_up, down;
  std::int64_t numel = 0, small = 0;  // elements, and those of tensors below the threshold among them
};

// The experts of one ep rank: gate and up of all of them, then the down matrices, and then their biases.
// Those of down products, which add up over the tp ranks, are dealt to these: a rank has hidden / tp of each.
struct ExpertWeights {
  ExpertWeights(const Transformer& model, const LocalSizes& sizes, std::int64_t threshold = 0);

  Weight gate_up(std::int64_t expert) const { return gate_up_.part(expert * ups_, ups_); }
  Weight down(std::int64_t expert) const { return down_.part(expert * hidden_, hidden_); }
  // A row for each expert; empty if they have none.
  Weight gate_up_biases, down_biases;
  std::int64_t numel = 0, small = 0;  // 0 if the model has no experts

 private:
  std::int64_t hidden_, ups_;  // rows of gate and up of an expert
  Weight gate_up_, down_;
};

// The final norm and, unless it is the embedding's, the head.
struct HeadWeights {
  HeadWeights(const Transformer& model, const LocalSizes& sizes, bool own_table, std::int64_t threshold = 0);

  Weight norm, table;
  std::int64_t numel = 0, small = 0;
};

// What a prediction layer has beside its layer: the norms of its two inputs, the matrix that they are joined
// by, [hidden, rows before and embedding], and its final norm. All tp ranks hold it alike: the rows between
// tensor-parallel regions are joined where they are, and travel no more often for that.
struct PredictionWeights {
  PredictionWeights() = default;
  explicit PredictionWeights(const Transformer& model, std::int64_t threshold = 0);

  Weight hidden_norm, embedding_norm, join, norm;
  std::int64_t numel = 0, small = 0;
};

}  // namespace cp
