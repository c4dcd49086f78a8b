// Activations says where a layer's intermediate results are stored: in stacks over the layers if the backward
// pass needs them, else in working buffers that every layer uses again.
//
// With host_activations the stacks are in host memory, host/activations/..., and the GPU has two slots for
// each, which layers use in turn. The stream "to_host" empties a slot behind its layer, and "from_host" fills
// one ahead of its layer's backward pass. Two are enough: while one layer computes in its slot, the copy of
// its neighbour runs in the other; each waits only for the layer that had the slot before.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/transformer/layer_loops.h"
#include "shared/transformer/step_writer.h"

namespace cp {

enum class Activation : std::uint8_t {
  norm1,  // [tokens_tp, hidden]
  qk,     // q and k before their norms, only with qk_norm: [tokens, q and k]
  // Where other tp ranks have heads of the same norms: the sums of both rows' squares, f32, [tokens, 2].
  qk_squares,
  q_latent,   // latent attention: [tokens_tp, q_rank]
  kv_latent,  // and with the key's rotated part before it is: [tokens_tp, kv_rank and rope_dim]
  normed_q_latent,
  normed_kv_latent,  // the same, its latent row normalized
  q,
  k,
  v,       // q, k, v: rotated, as attention takes them
  latent,  // [tokens, kv_rank and rope_dim], rotated: in place of k and v where attention expands the rows
  out,
  lse,
  saved_q,
  saved_k,
  saved_v,
  saved_latent,
  saved_out,  // saved_...: what attention plans keep for their backward pass
  gates,      // of attention's output, before their sigmoid: [tokens, output's width]
  gated_out,  // the output times its gates
  projected,  // recurrence: q, k and v before their convolution, gates, numbers: [tokens, all of them]
  halo,       // the rows before each chunk, which its convolution sees: [rows, q and k and v]
  recurrent_q,
  recurrent_k,
  recurrent_v,  // behind the convolution, as the recurrence takes them
  log_decay,
  beta,           // log_decay, beta: [tokens, value heads], f32
  recurrent_out,  // [tokens, value heads x value_dim]
  states,
  transitions,  // saved_states and saved_transitions of recurrences
  kept_q,
  kept_k,
  kept_v,
  kept_log_decay,
  kept_beta,   // kept_...: all rows of some heads, which StateScan::heads brought
  normed_out,  // of a recurrence, normalized and gated
  // What a short convolution's projection gives, and it itself: [tokens, B and x and C and y].
  convolution,
  convolution_in,    // B times x, which it takes: [tokens, width]
  convolution_halo,  // of these the rows before each chunk: [rows, width]
  convolved_out,     // C times y
  attended,          // what the mixer gives, before the norm behind it: [tokens_tp, hidden]
  mid,               // x between mixer and MLP: [tokens_tp, hidden]
  norm2,
  mlp_out,  // what the MLP gives, before the norm behind it: [tokens_tp, hidden]
  router,   // logits over the experts: [tokens, experts]
  route,    // the experts of each token: [tokens, top_k], i32
  expert_in,
  // expert_in and expert_weight: the rows that the rank's experts got, and the factor of each row's output
  expert_weight,
  expert_gate_up,  // [rows of experts, gate and up]
  expert_activated,
  gate_up,  // of the dense MLP: [tokens, gate and up]
  activated,
  shared_gate,  // what gates the shared MLP beside experts, before its sigmoid: [tokens, 1]
  shared_gate_up,
  shared_activated,
  joined,  // of a prediction layer: both of its inputs, normalized, side by side: [tokens_tp, 2 hidden]
};
inline constexpr std::size_t kActivations = 56;

class Activations {
 public:
  // `kind` is that of the stacks: temporary, or buffers of the caller, where the stack of inputs is inout if
  // a neighbouring stage writes into it. Stacks in host memory are always the caller's.
  Activations(StepWriter& writer, BufferKind kind);
  // Of a prediction layer, which is alone: its backward pass follows before anything else's, so that what it
  // keeps stays on the GPU, in temporaries.
  Activations(StepWriter& writer, const LayerPlace& alone);

  // The place of `what` in this layer, `numel` elements. Buffers are made on first use.
  Window at(Activation what, const LayerPlace& place, std::int64_t numel);
  View rows(Activation what, const LayerPlace& place, std::int64_t rows, std::int64_t width) {
    return at(what, place, rows * width).dense(0, {rows, width});
  }
  // The place of a buffer that attention plans ask for by `name`, and that is neither a gradient nor the
  // cache.
  View attention_operand(std::string_view name, const LayerPlace& place, std::int64_t numel);
  // The same of recurrences.
  View recurrence_operand(std::string_view name, const LayerPlace& place, std::int64_t numel);
  // Whether `what` is kept in a stack, and not in a working buffer.
  bool keeps(Activation what, const LayerPlace& place) const;

  // The input of a layer (or, behind the last layer, of the head), [tokens_tp, hidden], of the layers at the
  // home that the context has entered. If there is no backward pass, two slots take turns.
  View x(StackIndex input);

  // Of pipeline stages, in the caller's memory: where the input of the first layer comes to, at the home that
  // the context has entered, and where the output of the last one, which is `last`, leaves from. They are
  // pieces of the stack of inputs; or, where that is in host memory, one buffer of their own, from which
  // take_arrived() takes what has come, and to which hand_on() brings what is to leave.
  View arrived();
  View handed_on(StackIndex last);
  void take_arrived();
  void hand_on(StackIndex last);

  // For stacks in host memory: called behind a layer's forward pass, sends what the layer keeps.
  void send(const LayerPlace& place);
  // For stacks in host memory: called before a layer's backward pass. Whatever the layer asks for from now on
  // is fetched first.
  void begin_fetching(const LayerPlace& place);

 private:
  // A buffer of all pieces; or one of two slots, and all pieces in host memory.
  struct Stack {
    BufferId buffer = -1, host = -1;
    std::int64_t piece = 0;              // elements
    bool made = false, fetched = false;  // by the layer at work
  };

  // Which of the layers at its home that keep `what` this one is, and how many there are on the stage.
  StackIndex index(Activation what, const LayerPlace& place) const;
  std::int64_t pieces(Activation what, const LayerPlace& place) const;
  // The name of its stack: layers at either home have a stack of their own, since their pieces differ in size
  // where ranks have more rows at one home than at the other.
  std::string stack_name(std::string_view name, int home) const;

  bool on_host() const { return on_host_; }
  BufferId stack(std::string_view name, DType dtype, std::int64_t numel, BufferKind kind);
  BufferKind kind_of_inputs() const;
  View between_stages();
  BufferId host_stack(std::string_view name, DType dtype, std::int64_t numel);
  Window slot(Stack& stack, std::string_view name, DType dtype, std::int64_t piece, std::int64_t pieces,
              StackIndex index);
  void send_slot(const Stack& stack, StackIndex index);
  void fetch(Stack& stack, StackIndex index);

  StepWriter& writer_;
  BufferKind kind_;
  std::array<std::int64_t, kMostHomes> layers_at_{};                // at each home
  std::array<ByParts<std::int64_t>, kMostHomes> layers_that_keep_;  // of these; more than their input
  bool on_host_;
  std::array<std::array<Stack, kActivations>, kMostHomes> stacks_{};  // of the layers at each home
  std::array<Stack, kMostHomes> x_;
  BufferId between_stages_ = -1;
  bool fetches_ = false;
};

}  // namespace cp
