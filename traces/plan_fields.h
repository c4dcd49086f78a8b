// The tables that writing and reading plan.proto share.
#pragma once

#include <string>
#include <string_view>

#include <google/protobuf/message.h>

#include "shared/plan/plan.h"
#include "traces/enum_table.h"
#include "traces/plan.pb.h"

namespace cp::traces {

inline constexpr EnumTable<BufferKind, proto::BufferKind, 4> kBufferKinds = {
    {{BufferKind::input, proto::input},
     {BufferKind::output, proto::output},
     {BufferKind::inout, proto::inout},
     {BufferKind::temporary, proto::temporary}}};
inline constexpr EnumTable<MaskSlice::Kind, proto::MaskKind, 3> kMaskKinds = {
    {{MaskSlice::Kind::full, proto::full},
     {MaskSlice::Kind::causal, proto::causal},
     {MaskSlice::Kind::window, proto::window}}};
inline constexpr EnumTable<AttentionEngine, proto::AttentionEngine, 2> kAttentionEngines = {
    {{AttentionEngine::exact, proto::exact}, {AttentionEngine::fused, proto::fused}}};
inline constexpr EnumTable<ActivationFunction, proto::ActivationFunction, 7> kActivationFunctions = {
    {{ActivationFunction::silu, proto::silu},
     {ActivationFunction::gelu, proto::gelu},
     {ActivationFunction::gelu_tanh, proto::gelu_tanh},
     {ActivationFunction::relu, proto::relu},
     {ActivationFunction::relu2, proto::relu2},
     {ActivationFunction::quick_gelu, proto::quick_gelu},
     {ActivationFunction::identity, proto::identity}}};
inline constexpr EnumTable<RecurrenceRule, proto::RecurrenceRule, 2> kRecurrenceRules = {
    {{RecurrenceRule::decay, proto::decay}, {RecurrenceRule::delta, proto::delta}}};
inline constexpr EnumTable<RowOperation, proto::RowOperation, 29> kRowOperations = {
    {{RowOperation::rms_norm, proto::rms_norm},
     {RowOperation::rms_norm_backward, proto::rms_norm_backward},
     {RowOperation::rotary, proto::rotary},
     {RowOperation::rotary_backward, proto::rotary_backward},
     {RowOperation::gated_activation, proto::gated_activation},
     {RowOperation::gated_activation_backward, proto::gated_activation_backward},
     {RowOperation::embed, proto::embed},
     {RowOperation::embed_backward, proto::embed_backward},
     {RowOperation::cross_entropy, proto::cross_entropy},
     {RowOperation::cross_entropy_backward, proto::cross_entropy_backward},
     {RowOperation::route, proto::route},
     {RowOperation::route_backward, proto::route_backward},
     {RowOperation::dispatch, proto::dispatch},
     {RowOperation::combine, proto::combine},
     {RowOperation::add_bias, proto::add_bias},
     {RowOperation::squared_norm, proto::squared_norm},
     {RowOperation::optimizer, proto::optimizer},
     {RowOperation::output_gate, proto::output_gate},
     {RowOperation::output_gate_backward, proto::output_gate_backward},
     {RowOperation::short_convolution, proto::short_convolution},
     {RowOperation::short_convolution_backward, proto::short_convolution_backward},
     {RowOperation::decay_and_beta, proto::decay_and_beta},
     {RowOperation::decay_and_beta_backward, proto::decay_and_beta_backward},
     {RowOperation::gated_norm, proto::gated_norm},
     {RowOperation::gated_norm_backward, proto::gated_norm_backward},
     {RowOperation::norm_sums, proto::norm_sums},
     {RowOperation::norm_sums_backward, proto::norm_sums_backward},
     {RowOperation::group_bias, proto::group_bias},
     {RowOperation::group_bias_backward, proto::group_bias_backward}}};

// The field of an operation's message, found by the name that visit_fields() gives it.
inline const google::protobuf::FieldDescriptor* field_named(const google::protobuf::Message& message,
                                                            std::string_view name) {
  const auto* field = message.GetDescriptor()->FindFieldByName(std::string(name));
  CP_INVARIANT(field != nullptr, "plan.proto: ", message.GetTypeName(), " has no field ", name);
  return field;
}

}  // namespace cp::traces
