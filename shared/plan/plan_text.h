// The text form of a plan, made for reading and for tests. One line for each thing:
//
//   plan rank 0 inputs <digest> arena 2048
//   target "host" alignment 1 collectives all_gather,exchange kernels copy dtypes f32,bf16
//   stream 0 "compute"
//   group 0 "cp" ranks 0,1
//   buffer 0 "x" input f32 256
//   buffer 1 "kv" temporary f32 512 at 0 used 0..2
//   step 0 on 0 copy in=b0+0[256] out=b1+0[256]
//   repeat 4
//     step 1 on 1 exchange group=0 sends=1:b1+0[256]~256%2+0 recvs=1:b1+0[256]~256%2+1 counts=<digest> after 2@1 "ring"
//     step 2 on 0 ...
//   end
//
// A view is b<buffer>+<offset>[<shape>], with :<strides> after the shape unless they are those of a row-major
// tensor, and with ~<stride>%<period>+<phase> when it advances. An edge is <step>, or <step>@<iterations
// back>. A mask slice is <q_begin>+<q_len>/<k_begin>+<k_len>/<kind>/<diagonal>/<window>. Names and labels are
// quoted; inside, \" \\ and \xNN (for control characters) are escapes. A list without entries is "-". A
// RowKernel is row_kernel operation=<its name> ... rule=<its rule's name>/<field>/<field>..., or without a
// rule. A target with fused attention goes on with fused_attention
// <its fields>. Of an attention step, engine, workspace and (backward) out are written where they are not
// exact or absent; any other absent view is b-1+0[].
//
// This header is what writer and reader share; to_text() and parse_plan() are declared in plan.h.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "shared/plan/plan.h"

namespace cp {

inline constexpr std::array<std::pair<BufferKind, std::string_view>, 4> kBufferKinds = {
    {{BufferKind::input, "input"},
     {BufferKind::output, "output"},
     {BufferKind::inout, "inout"},
     {BufferKind::temporary, "temporary"}}};
inline constexpr std::array<std::pair<MaskSlice::Kind, std::string_view>, 3> kMaskKinds = {
    {{MaskSlice::Kind::full, "full"},
     {MaskSlice::Kind::causal, "causal"},
     {MaskSlice::Kind::window, "window"}}};

inline constexpr std::array<std::pair<ActivationFunction, std::string_view>, 7> kActivationFunctions = {
    {{ActivationFunction::silu, "silu"},
     {ActivationFunction::gelu, "gelu"},
     {ActivationFunction::gelu_tanh, "gelu_tanh"},
     {ActivationFunction::relu, "relu"},
     {ActivationFunction::relu2, "relu2"},
     {ActivationFunction::quick_gelu, "quick_gelu"},
     {ActivationFunction::identity, "identity"}}};
inline constexpr std::array<std::pair<RecurrenceRule, std::string_view>, 2> kRecurrenceRules = {
    {{RecurrenceRule::decay, "decay"}, {RecurrenceRule::delta, "delta"}}};
inline constexpr std::array<std::pair<AttentionEngine, std::string_view>, 2> kAttentionEngines = {
    {{AttentionEngine::exact, "exact"}, {AttentionEngine::fused, "fused"}}};

template <class Table, class Value>
std::string_view name_in(const Table& table, Value value) {
  for (const auto& [candidate, text] : table) {
    if (candidate == value) return text;
  }
  return "?";
}

}  // namespace cp
