// Activations: where what a layer makes lies: in stacks over the layers where the backward pass needs it,
// else in working buffers.
//
// With host_activations the stacks are in host memory, host/activations/..., and on the GPU two slots take
// turns: the stream "to_host" empties a slot behind its layer, and "from_host" fills one ahead of its layer's
// backward pass; each waits for the other layer that has the slot, and for nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "shared/transformer/layer_loops.h"
#include "shared/transformer/step_writer.h"

namespace cp {

enum class Activation : std::uint8_t {
  norm1,  // [tokens_tp, hidden]
  qk,     // before their norms, with qk_norm: [tokens, q and k]
  q,
  k,
  v,  // rotated, as attention takes them
  out,
  lse,
  saved_q,
  saved_k,
  saved_v,
  saved_out,  // as attention plans keep them
  mid,        // x between attention and MLP: [tokens_tp, hidden]
  norm2,
  router,  // logits of experts: [tokens, experts]
  route,   // which experts a token goes to: [tokens, top_k], i32
  expert_in,
  expert_weight,  // rows of the rank's experts, and what their outputs are multiplied by
  gate_up,        // [tokens or rows of experts, gate and up]
  activated,
};
inline constexpr std::size_t kActivations = 19;

class Activations {
 public:
  // `kind`: of the stacks: temporaries, or the caller's. Those in host memory are always the caller's.
  Activations(StepWriter& writer, BufferKind kind) : writer_(writer), kind_(kind) {}

  // A piece of that many elements for each layer.
  Window at(Activation what, const LayerPlace& place, DType dtype, std::int64_t numel);
  View rows(Activation what, const LayerPlace& place, std::int64_t rows, std::int64_t width) {
    return at(what, place, writer_.dtype(), rows * width).dense(0, {rows, width});
  }
  // A buffer of the attention plans that is neither gradient nor cache, by its name there.
  View attention_operand(std::string_view name, const LayerPlace& place, std::int64_t numel);
  // Whether it lies in a stack.
  bool keeps(Activation what, const LayerPlace& place) const;

  // Sines and cosines of all positions of a sequence, f32, [seq_len, head_dim], of which rotary kernels read
  // those of the rank's rows: every rank has the whole table, however many share the sequence.
  View positions();

  // The input of a layer, or of what follows the last one: [tokens_tp, hidden]. Without a backward pass two
  // slots take turns.
  View x(StackIndex layer);

  // In host memory. Behind a layer's forward pass: sends what it keeps.
  void send(const LayerPlace& place);
  // Before a layer's backward pass: whatever it asks for from now on is fetched first.
  void begin_fetching(const LayerPlace& place);

 private:
  // All pieces; or two slots, and all pieces in host memory.
  struct Stack {
    BufferId buffer = -1, host = -1;
    std::int64_t piece = 0;              // elements
    bool made = false, fetched = false;  // by the layer at work
  };

  bool on_host() const { return writer_.context().layout.host_activations && writer_.context().training; }
  BufferId stack(std::string_view name, DType dtype, std::int64_t numel);
  BufferId host_stack(std::string_view name, DType dtype, std::int64_t numel);
  Window slot(Stack& stack, std::string_view name, DType dtype, std::int64_t piece, std::int64_t pieces,
              StackIndex index);
  void send(const Stack& stack, StackIndex index);
  void fetch(Stack& stack, StackIndex index);

  StepWriter& writer_;
  BufferKind kind_;
  std::array<Stack, kActivations> stacks_{};
  Stack x_;
  BufferId positions_ = -1;
  bool fetches_ = false;
};

}  // namespace cp
