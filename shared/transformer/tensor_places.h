// Where a model's tensors lie on a rank: which elements of which tensor the pieces of its units are made of.
// What initializes, saves, loads or compares parameters asks here; the plans themselves know units alone
// (shared/fully_shard/unshard_writer.h).
//
// Tensors have Hugging Face's names, and matrices are [out, in]. Families differ in names; some stand here
// for all:
//   norms        input_layernorm before the mixer, post_attention_layernorm before the MLP (Llama). With
//                norms behind, post_attention_layernorm is the one behind the mixer,
//                pre_feedforward_layernorm before the MLP, post_feedforward_layernorm behind it (Gemma, OLMo
//                2).
//   attention    self_attn.{q,k,v,o}_proj, q_norm, k_norm, sinks, and gate_proj, the gates of its output;
//                biases have their matrix's name, with .bias
//   latent       self_attn.{q_a_proj, q_a_layernorm, q_b_proj}, or q_proj; kv_a_proj_with_mqa, kv_a_layernorm,
//                kv_b_proj
//   recurrence   linear_attn.in_proj_qkv, in_proj_z (gates), in_proj_b and in_proj_a, or in_proj_dt; conv1d,
//                A_log, dt_bias, D, norm, out_proj
//   convolution  conv.in_proj (B, C and x), conv.conv (the taps), conv.out_proj; biases as of attention
//   MLP          mlp.{gate,up,down}_proj; experts: mlp.gate (the router), mlp.experts.7.{gate,up,down}_proj,
//                mlp.shared_experts.*, mlp.shared_expert_gate; mlp.gate.e_score_correction_bias, what the
//                router adds to the scores that it chooses by
//   predictions  those of depth d are layers.(layers + d - 1), and have hnorm, enorm, eh_proj and
//                shared_head.norm beside a layer's
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/step_plan.h"

namespace cp {

// The embedding's table, and the head's if they are tied.
inline constexpr const char* kEmbeddingTensor = "model.embed_tokens.weight";

// Rows first_row .. first_row + rows - 1 of a tensor, and of these some columns, as they lie in a piece: row
// by row, with no gaps, from element `begin` on. A vector is one row.
struct TensorBlock {
  std::string tensor;
  std::int64_t begin = 0, rows = 0, columns = 0;
  std::int64_t first_row = 0, first_column = 0;
  bool operator==(const TensorBlock&) const = default;
};

// Elements first .. first + count - 1 of a block, which is counted row by row.
struct TensorRun {
  const TensorBlock& block;
  std::int64_t first = 0, count = 0;
};
// Calls use(row, column, at, count) for each stretch of the run that lies in one row of its tensor; `at`
// counts the run's elements.
template <class Use>
void for_each_row(const TensorRun& run, const Use& use) {
  for (std::int64_t at = 0; at < run.count;) {
    const std::int64_t row = (run.first + at) / run.block.columns,
                       column = (run.first + at) % run.block.columns,
                       count = std::min(run.block.columns - column, run.count - at);
    use(run.block.first_row + row, run.block.first_column + column, at, count);
    at += count;
  }
}

// A unit as the rank has it. Elements of a piece that no block has are padding: they are zero, and no
// gradient is ever made of them.
struct UnitTensors {
  ShardedUnit unit;
  std::int64_t index = 0;                        // of the rank among those that share a piece
  std::vector<std::vector<TensorBlock>> pieces;  // by piece, blocks by ascending begin
  // False: no gradient is made of it and the optimizer neither moves it nor has states of it. Its f32 values
  // are in parameters/<name>.
  bool trained = true;

  // An element of a piece.
  struct Element {
    std::int64_t piece = 0, at = 0;
  };
  // Of the elements that the rank owns, by which buffers of shards are numbered: f32 parameters or master
  // copies, reduced gradients, and each state of the optimizer. One at or beyond the piece's numel is
  // padding, as is one of no piece.
  Element owned(std::int64_t index_in_shard) const;
  std::int64_t num_owned() const { return unit.num_owned(); }
  // How many elements from this one on are owned one behind the other, of one piece, or of padding.
  std::int64_t num_following(std::int64_t index_in_shard) const;
  // Calls use(run, index) for all elements that the rank owns, but for padding, by ascending index: that of
  // the run's first element in buffers of shards.
  void for_each_owned(const std::function<void(const TensorRun& run, std::int64_t index)>& use) const;
  // Where an element lies in a buffer of whole pieces.
  std::int64_t in_whole(Element element) const { return element.piece * unit.whole_stride() + element.at; }
};

// The sizes of a tensor; a vector has one row.
struct TensorShape {
  std::string tensor;
  std::int64_t rows = 0, columns = 0;
  bool trained = true;  // as its unit
  std::int64_t numel() const { return rows * columns; }
};
// All tensors of the model, each once, by their names.
std::vector<TensorShape> tensors_of_model(const Transformer& model);

// Of one of the stages that the rank holds; throws InvalidInput as step_plan() does.
std::vector<UnitTensors> tensors_of_stage(const StepRequest& request, int stage, Rank self);

}  // namespace cp
