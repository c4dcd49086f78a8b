// Says once what every operation consists of: its name, its fields, and what it reads and writes.
//
// The text form, the digest and accesses() are made from this. Whoever adds an operation to plan.h adds it
// here and to validate_step(), and nowhere else under shared/plan.
#pragma once

#include <array>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shared/plan/plan.h"

namespace cp {

// The name of the type: the word of the text form and of plan.proto. operation_name() differs from it only
// for RowKernels.
template <class Op>
inline constexpr std::string_view kOperationName = "";
template <>
inline constexpr std::string_view kOperationName<AllGather> = "all_gather";
template <>
inline constexpr std::string_view kOperationName<ReduceScatter> = "reduce_scatter";
template <>
inline constexpr std::string_view kOperationName<AllReduce> = "all_reduce";
template <>
inline constexpr std::string_view kOperationName<AllToAll> = "all_to_all";
template <>
inline constexpr std::string_view kOperationName<Broadcast> = "broadcast";
template <>
inline constexpr std::string_view kOperationName<Exchange> = "exchange";
template <>
inline constexpr std::string_view kOperationName<Copy> = "copy";
template <>
inline constexpr std::string_view kOperationName<Cast> = "cast";
template <>
inline constexpr std::string_view kOperationName<Fill> = "fill";
template <>
inline constexpr std::string_view kOperationName<Accumulate> = "accumulate";
template <>
inline constexpr std::string_view kOperationName<Scale> = "scale";
template <>
inline constexpr std::string_view kOperationName<MatMul> = "matmul";
template <>
inline constexpr std::string_view kOperationName<AttentionForward> = "attention_forward";
template <>
inline constexpr std::string_view kOperationName<AttentionBackward> = "attention_backward";
template <>
inline constexpr std::string_view kOperationName<AttentionDelta> = "attention_delta";
template <>
inline constexpr std::string_view kOperationName<AttentionSinkGradient> = "attention_sink_gradient";
template <>
inline constexpr std::string_view kOperationName<AttentionMerge> = "attention_merge";
template <>
inline constexpr std::string_view kOperationName<RecurrenceForward> = "recurrence_forward";
template <>
inline constexpr std::string_view kOperationName<RecurrenceSummary> = "recurrence_summary";
template <>
inline constexpr std::string_view kOperationName<RecurrenceSummaryGradient> = "recurrence_summary_gradient";
template <>
inline constexpr std::string_view kOperationName<RecurrenceJoin> = "recurrence_join";
template <>
inline constexpr std::string_view kOperationName<RecurrenceBackward> = "recurrence_backward";
template <>
inline constexpr std::string_view kOperationName<RowKernel> = "row_kernel";

inline constexpr std::array<std::pair<RowOperation, std::string_view>, 29> kRowOperations = {
    {{RowOperation::rms_norm, "rms_norm"},
     {RowOperation::rms_norm_backward, "rms_norm_backward"},
     {RowOperation::rotary, "rotary"},
     {RowOperation::rotary_backward, "rotary_backward"},
     {RowOperation::gated_activation, "gated_activation"},
     {RowOperation::gated_activation_backward, "gated_activation_backward"},
     {RowOperation::embed, "embed"},
     {RowOperation::embed_backward, "embed_backward"},
     {RowOperation::cross_entropy, "cross_entropy"},
     {RowOperation::cross_entropy_backward, "cross_entropy_backward"},
     {RowOperation::route, "route"},
     {RowOperation::route_backward, "route_backward"},
     {RowOperation::dispatch, "dispatch"},
     {RowOperation::combine, "combine"},
     {RowOperation::add_bias, "add_bias"},
     {RowOperation::squared_norm, "squared_norm"},
     {RowOperation::optimizer, "optimizer"},
     {RowOperation::output_gate, "output_gate"},
     {RowOperation::output_gate_backward, "output_gate_backward"},
     {RowOperation::short_convolution, "short_convolution"},
     {RowOperation::short_convolution_backward, "short_convolution_backward"},
     {RowOperation::decay_and_beta, "decay_and_beta"},
     {RowOperation::decay_and_beta_backward, "decay_and_beta_backward"},
     {RowOperation::gated_norm, "gated_norm"},
     {RowOperation::gated_norm_backward, "gated_norm_backward"},
     {RowOperation::norm_sums, "norm_sums"},
     {RowOperation::norm_sums_backward, "norm_sums_backward"},
     {RowOperation::group_bias, "group_bias"},
     {RowOperation::group_bias_backward, "group_bias_backward"}}};

// Whether the text and the digest of a plan leave the field of an operation or a rule out if it has its
// default. Fields of rules that may be are the last ones.
template <class Op>
constexpr bool may_be_left_out(std::string_view field) {
  if constexpr (std::is_same_v<Op, AttentionForward> || std::is_same_v<Op, AttentionBackward>) {
    return field == "engine" || field == "workspace" || field == "softcap" || field == "dropout" ||
           field == "seed" || (std::is_same_v<Op, AttentionBackward> && field == "out");
  } else if constexpr (std::is_same_v<Op, AttentionMerge>) {
    return field == "more" || field == "more_lse";
  } else if constexpr (std::is_same_v<Op, RecurrenceForward>) {
    return field == "final_state";
  } else if constexpr (std::is_same_v<Op, RowKernel>) {
    return field == "rule";
  } else if constexpr (std::is_same_v<Op, ConvolutionRule>) {
    return field == "plain";
  } else {
    return false;
  }
}
// Whether the field may be an absent view (is_absent).
template <class Op>
constexpr bool may_be_absent(std::string_view field) {
  return may_be_left_out<Op>(field) ||
         (std::is_same_v<Op, AttentionBackward> &&
          (field == "delta" || field == "dq" || field == "dk" || field == "dv")) ||
         (std::is_same_v<Op, AttentionMerge> && (field == "in_lse" || field == "lse")) ||
         (std::is_same_v<Op, RecurrenceForward> && field == "state") ||
         (std::is_same_v<Op, RecurrenceSummary> && field == "transition") ||
         (std::is_same_v<Op, RecurrenceBackward> && (field == "state" || field == "dstate")) ||
         (std::is_same_v<Op, Broadcast> && field == "in");  // only the root reads it
}

// Calls visit(name, field) for each field, in the order of definition. `op` is an operation or a Target's
// FusedAttention, and may be const.
template <class Op, class Visit>
void visit_fields(Op& op, Visit&& visit) {
  using T = std::remove_const_t<Op>;
  if constexpr (std::is_same_v<T, AllGather> || std::is_same_v<T, AllToAll>) {
    visit("group", op.group), visit("in", op.in), visit("out", op.out);
  } else if constexpr (std::is_same_v<T, ReduceScatter> || std::is_same_v<T, AllReduce>) {
    visit("group", op.group), visit("op", op.op), visit("in", op.in), visit("out", op.out);
  } else if constexpr (std::is_same_v<T, Broadcast>) {
    visit("group", op.group), visit("root", op.root), visit("in", op.in), visit("out", op.out);
  } else if constexpr (std::is_same_v<T, Exchange>) {
    visit("group", op.group), visit("sends", op.sends), visit("recvs", op.recvs), visit("counts", op.counts);
  } else if constexpr (std::is_same_v<T, Copy> || std::is_same_v<T, Cast>) {
    visit("in", op.in), visit("out", op.out);
  } else if constexpr (std::is_same_v<T, Fill>) {
    visit("out", op.out), visit("value", op.value);
  } else if constexpr (std::is_same_v<T, Accumulate>) {
    visit("op", op.op), visit("in", op.in), visit("out", op.out);
  } else if constexpr (std::is_same_v<T, Scale>) {
    visit("data", op.data), visit("factor", op.factor);
  } else if constexpr (std::is_same_v<T, MatMul>) {
    visit("a", op.a), visit("b", op.b), visit("out", op.out), visit("accumulate", op.accumulate);
  } else if constexpr (std::is_same_v<T, AttentionForward>) {
    visit("q", op.q), visit("k", op.k), visit("v", op.v), visit("out", op.out), visit("lse", op.lse);
    visit("softmax_scale", op.softmax_scale), visit("slices", op.slices);
    visit("engine", op.engine), visit("workspace", op.workspace);
    visit("softcap", op.softcap), visit("dropout", op.dropout), visit("seed", op.seed);
  } else if constexpr (std::is_same_v<T, AttentionBackward>) {
    visit("q", op.q), visit("k", op.k), visit("v", op.v), visit("dout", op.dout), visit("lse", op.lse);
    visit("delta", op.delta), visit("dq", op.dq), visit("dk", op.dk), visit("dv", op.dv);
    visit("softmax_scale", op.softmax_scale), visit("slices", op.slices);
    visit("accumulate_dq", op.accumulate_dq), visit("accumulate_dkv", op.accumulate_dkv);
    visit("out", op.out), visit("engine", op.engine), visit("workspace", op.workspace);
    visit("softcap", op.softcap), visit("dropout", op.dropout), visit("seed", op.seed);
  } else if constexpr (std::is_same_v<T, AttentionDelta>) {
    visit("out", op.out), visit("dout", op.dout), visit("delta", op.delta);
  } else if constexpr (std::is_same_v<T, AttentionSinkGradient>) {
    visit("sinks", op.sinks), visit("lse", op.lse), visit("out", op.out), visit("dout", op.dout);
    visit("dsinks", op.dsinks);
  } else if constexpr (std::is_same_v<T, FusedAttention>) {
    visit("dtypes", op.dtypes), visit("head_dim_multiple", op.head_dim_multiple);
    visit("max_head_dim_forward", op.max_head_dim_forward);
    visit("max_head_dim_backward", op.max_head_dim_backward);
    visit("window", op.window), visit("packed", op.packed), visit("sm_count", op.sm_count);
    visit("window_tail", op.window_tail);
  } else if constexpr (std::is_same_v<T, RecurrenceForward>) {
    visit("q", op.q), visit("k", op.k), visit("v", op.v), visit("log_decay", op.log_decay);
    visit("beta", op.beta), visit("state", op.state), visit("out", op.out), visit("starts", op.starts);
    visit("scale", op.scale), visit("rule", op.rule), visit("final_state", op.final_state);
  } else if constexpr (std::is_same_v<T, RecurrenceSummary>) {
    visit("k", op.k), visit("v", op.v), visit("log_decay", op.log_decay), visit("beta", op.beta);
    visit("state", op.state), visit("transition", op.transition), visit("rule", op.rule);
  } else if constexpr (std::is_same_v<T, RecurrenceSummaryGradient>) {
    visit("q", op.q), visit("k", op.k), visit("log_decay", op.log_decay), visit("beta", op.beta);
    visit("dout", op.dout), visit("dstate", op.dstate), visit("scale", op.scale), visit("rule", op.rule);
  } else if constexpr (std::is_same_v<T, RecurrenceJoin>) {
    visit("transition", op.transition), visit("in", op.in), visit("out", op.out);
    visit("accumulate", op.accumulate), visit("transposed", op.transposed);
  } else if constexpr (std::is_same_v<T, RecurrenceBackward>) {
    visit("q", op.q), visit("k", op.k), visit("v", op.v), visit("log_decay", op.log_decay);
    visit("beta", op.beta), visit("state", op.state), visit("dout", op.dout), visit("dstate", op.dstate);
    visit("dq", op.dq), visit("dk", op.dk), visit("dv", op.dv), visit("dlog_decay", op.dlog_decay);
    visit("dbeta", op.dbeta), visit("workspace", op.workspace), visit("starts", op.starts);
    visit("scale", op.scale), visit("rule", op.rule);
  } else if constexpr (std::is_same_v<T, RowKernel>) {
    visit("operation", op.operation), visit("reads", op.reads), visit("writes", op.writes);
    visit("updates", op.updates), visit("rule", op.rule);
  } else {
    static_assert(std::is_same_v<T, AttentionMerge>, "an operation without fields");
    visit("in", op.in), visit("in_lse", op.in_lse), visit("out", op.out), visit("lse", op.lse);
    visit("more", op.more), visit("more_lse", op.more_lse);
  }
}

// Calls f(op) with the operation itself, be it a kernel or a collective.
template <class AnyWork, class F>
decltype(auto) visit_operation(AnyWork& work, F&& f) {
  return std::visit([&](auto& kind) -> decltype(auto) { return std::visit(f, kind); }, work);
}

// Calls f(Access) for each view of the operation, in the order of accesses(), without allocating.
template <class Op, class F>
void for_each_access_of(const Op& op, std::int32_t index_in_group, F&& f) {
  const auto reads = [&](const auto&... views) { (f(Access{&views, true, false}), ...); };
  const auto writes = [&](const auto&... views) { (f(Access{&views, false, true}), ...); };
  const auto updates = [&](const auto&... views) { (f(Access{&views, true, true}), ...); };
  using T = std::remove_cvref_t<Op>;
  if constexpr (std::is_same_v<T, Broadcast>) {
    if (index_in_group == op.root) reads(op.in);
    writes(op.out);
  } else if constexpr (std::is_same_v<T, Exchange>) {
    for (const Transfer& send : op.sends) reads(send.view);
    for (const Transfer& recv : op.recvs) writes(recv.view);
  } else if constexpr (std::is_same_v<T, Fill>) {
    writes(op.out);
  } else if constexpr (std::is_same_v<T, Accumulate>) {
    reads(op.in), updates(op.out);
  } else if constexpr (std::is_same_v<T, Scale>) {
    updates(op.data);
  } else if constexpr (std::is_same_v<T, MatMul>) {
    reads(op.a, op.b);
    op.accumulate ? updates(op.out) : writes(op.out);
  } else if constexpr (std::is_same_v<T, AttentionForward>) {
    reads(op.q, op.k, op.v), writes(op.out, op.lse);
    if (!is_absent(op.workspace)) writes(op.workspace);
    if (!is_absent(op.seed)) reads(op.seed);
  } else if constexpr (std::is_same_v<T, AttentionBackward>) {
    reads(op.q, op.k, op.v, op.dout, op.lse);
    for (const View* view : {&op.delta, &op.out}) {
      if (!is_absent(*view)) reads(*view);
    }
    const auto gradient = [&](const View& view, bool accumulate) {
      if (!is_absent(view)) accumulate ? updates(view) : writes(view);
    };
    gradient(op.dq, op.accumulate_dq);
    gradient(op.dk, op.accumulate_dkv), gradient(op.dv, op.accumulate_dkv);
    if (!is_absent(op.workspace)) writes(op.workspace);
    if (!is_absent(op.seed)) reads(op.seed);
  } else if constexpr (std::is_same_v<T, AttentionDelta>) {
    reads(op.out, op.dout), writes(op.delta);
  } else if constexpr (std::is_same_v<T, AttentionSinkGradient>) {
    reads(op.sinks, op.lse, op.out, op.dout), writes(op.dsinks);
  } else if constexpr (std::is_same_v<T, AttentionMerge>) {
    const bool has_lse = !is_absent(op.lse);
    reads(op.in);
    if (has_lse) reads(op.in_lse);
    for (const View& view : op.more) reads(view);
    for (const View& view : op.more_lse) reads(view);
    updates(op.out);
    if (has_lse) updates(op.lse);
  } else if constexpr (std::is_same_v<T, RecurrenceForward>) {
    reads(op.q, op.k, op.v, op.log_decay, op.beta);
    const bool in_place = !is_absent(op.state) && op.state == op.final_state;
    if (!is_absent(op.state) && !in_place) reads(op.state);
    writes(op.out);
    if (!is_absent(op.final_state)) in_place ? updates(op.final_state) : writes(op.final_state);
  } else if constexpr (std::is_same_v<T, RecurrenceSummary>) {
    reads(op.k, op.v, op.log_decay, op.beta), writes(op.state);
    if (!is_absent(op.transition)) writes(op.transition);
  } else if constexpr (std::is_same_v<T, RecurrenceSummaryGradient>) {
    reads(op.q, op.k, op.log_decay, op.beta, op.dout), writes(op.dstate);
  } else if constexpr (std::is_same_v<T, RecurrenceJoin>) {
    reads(op.transition, op.in);
    op.accumulate ? updates(op.out) : writes(op.out);
  } else if constexpr (std::is_same_v<T, RecurrenceBackward>) {
    reads(op.q, op.k, op.v, op.log_decay, op.beta, op.dout);
    for (const View* view : {&op.state, &op.dstate}) {
      if (!is_absent(*view)) reads(*view);
    }
    writes(op.dq, op.dk, op.dv, op.dlog_decay, op.dbeta, op.workspace);
  } else if constexpr (std::is_same_v<T, RowKernel>) {
    for (const View& view : op.reads) reads(view);
    for (const View& view : op.writes) writes(view);
    for (const View& view : op.updates) updates(view);
  } else {
    reads(op.in), writes(op.out);
  }
}
template <class F>
void for_each_access(const Work& work, std::int32_t index_in_group, F&& f) {
  visit_operation(work, [&](const auto& op) { for_each_access_of(op, index_in_group, f); });
}

// The same for a step of the plan's rank. The rank's index in the group is looked up for a Broadcast only,
// the only operation for which it matters.
template <class F>
void for_each_access(const Plan& plan, const Work& work, F&& f) {
  const Collective* collective = std::get_if<Collective>(&work);
  const bool broadcast = collective != nullptr && std::holds_alternative<Broadcast>(*collective);
  for_each_access(work, broadcast ? index_in_group(plan, group_of(*collective)) : 0, f);
}

}  // namespace cp
