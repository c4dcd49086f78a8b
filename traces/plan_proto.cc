#include "traces/plan_proto.h"

#include <cstddef>
#include <set>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "traces/plan_fields.h"
#include "traces/types_proto.h"

namespace cp {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using traces::field_named;
using traces::kBufferKinds;
using traces::kMaskKinds;

void write(const FusedAttention& fused, proto::FusedAttention& message);

void write(const Target& target, proto::Target& message) {
  message.set_name(require_utf8(target.name, FieldPath("target.name")));
  for (const std::string& name : target.collectives) {
    message.add_collectives(require_utf8(name, FieldPath("target.collectives")));
  }
  for (const std::string& name : target.kernels) {
    message.add_kernels(require_utf8(name, FieldPath("target.kernels")));
  }
  for (const DType dtype : target.dtypes) message.add_dtypes(to_proto(dtype));
  message.set_alignment_bytes(target.alignment_bytes);
  for (const std::string& name : target.sm_only)
    message.add_sm_only(require_utf8(name, FieldPath("target.sm_only")));
  if (target.fused_attention) write(*target.fused_attention, *message.mutable_fused_attention());
}

void write(const Buffer& buffer, proto::Buffer& message) {
  message.set_name(require_utf8(buffer.name, FieldPath("buffer.name")));
  message.set_kind(kBufferKinds.to_proto(buffer.kind));
  message.set_dtype(to_proto(buffer.dtype));
  message.set_numel(buffer.numel);
  message.set_offset_bytes(buffer.offset_bytes);
  message.set_first_use(buffer.first_use);
  message.set_last_use(buffer.last_use);
  message.set_symmetric(buffer.symmetric);
}

void write(const View& view, proto::View& message) {
  message.set_buffer(view.buffer);
  message.set_offset(view.offset);
  message.mutable_shape()->Add(view.shape.begin(), view.shape.end());
  message.mutable_strides()->Add(view.strides.begin(), view.strides.end());
  if (view.advance == Advance{}) return;
  message.mutable_advance()->set_stride(view.advance.stride);
  message.mutable_advance()->set_period(view.advance.period);
  message.mutable_advance()->set_phase(view.advance.phase);
}

void write(const Transfer& transfer, proto::Transfer& message) {
  message.set_peer(transfer.peer);
  write(transfer.view, *message.mutable_view());
  if (!is_absent(transfer.there)) write(transfer.there, *message.mutable_there());
}

void write(const MaskSlice& slice, proto::MaskSlice& message) {
  message.set_q_begin(slice.q_begin);
  message.set_q_len(slice.q_len);
  message.set_k_begin(slice.k_begin);
  message.set_k_len(slice.k_len);
  message.set_kind(kMaskKinds.to_proto(slice.kind));
  message.set_diagonal(slice.diagonal);
  message.set_window(slice.window);
}

void write(const Run& run, proto::IndexRun& message) {
  message.set_begin(run.begin);
  message.set_run(run.run);
  message.set_stride(run.stride);
  message.set_count(run.count);
}

void write(const IndexSet& set, google::protobuf::RepeatedPtrField<proto::IndexRun>& list) {
  for (const Run& run : set) write(run, *list.Add());
}

void write(const AttentionDropout& dropout, proto::AttentionDropout& message) {
  message.set_probability(dropout.probability);
  message.set_layer(dropout.layer);
  message.set_first_batch(dropout.first_batch);
  message.set_first_head(dropout.first_head);
  message.set_heads(dropout.heads);
  write(dropout.queries, *message.mutable_queries());
  write(dropout.keys, *message.mutable_keys());
}

// Called by visit_fields() for each field of an operation.
class OperationWriter {
 public:
  explicit OperationWriter(Message& message) : message_(message), reflection_(*message.GetReflection()) {}

  void operator()(std::string_view name, std::int32_t value) const {
    reflection_.SetInt32(&message_, field_named(message_, name), value);
  }
  void operator()(std::string_view name, std::int64_t value) const {
    reflection_.SetInt64(&message_, field_named(message_, name), value);
  }
  void operator()(std::string_view name, double value) const {
    reflection_.SetDouble(&message_, field_named(message_, name), value);
  }
  void operator()(std::string_view name, bool value) const {
    reflection_.SetBool(&message_, field_named(message_, name), value);
  }
  void operator()(std::string_view name, ReduceOp value) const {
    reflection_.SetEnumValue(&message_, field_named(message_, name), to_proto(value));
  }
  void operator()(std::string_view name, RowOperation value) const {
    reflection_.SetEnumValue(&message_, field_named(message_, name), traces::kRowOperations.to_proto(value));
  }
  void operator()(std::string_view name, AttentionEngine value) const {
    reflection_.SetEnumValue(&message_, field_named(message_, name),
                             traces::kAttentionEngines.to_proto(value));
  }
  void operator()(std::string_view name, ActivationFunction value) const {
    reflection_.SetEnumValue(&message_, field_named(message_, name),
                             traces::kActivationFunctions.to_proto(value));
  }
  void operator()(std::string_view name, RecurrenceRule value) const {
    reflection_.SetEnumValue(&message_, field_named(message_, name),
                             traces::kRecurrenceRules.to_proto(value));
  }
  void operator()(std::string_view name, const std::vector<std::int64_t>& values) const {
    for (const std::int64_t value : values)
      reflection_.AddInt64(&message_, field_named(message_, name), value);
  }
  void operator()(std::string_view name, const std::set<DType>& values) const {
    for (const DType value : values)
      reflection_.AddEnumValue(&message_, field_named(message_, name), to_proto(value));
  }
  void operator()(std::string_view name, const Digest& value) const {
    sub_message<proto::Digest>(name) = to_proto(value);
  }
  void operator()(std::string_view name, const View& value) const {
    if (!is_absent(value)) write(value, sub_message<proto::View>(name));
  }
  void operator()(std::string_view name, const AttentionDropout& value) const {
    if (value != AttentionDropout{}) write(value, sub_message<proto::AttentionDropout>(name));
  }
  void operator()(std::string_view name, const RowRule& value) const {
    if (value.index() == 0) return;
    Message& rule = *reflection_.MutableMessage(&message_, field_named(message_, name));
    const FieldDescriptor* chosen = field_named(rule, kRowRules[value.index()]);
    const OperationWriter writer(*rule.GetReflection()->MutableMessage(&rule, chosen));
    std::visit([&](const auto& fields) { visit_rule_fields(fields, writer); }, value);
  }
  void operator()(std::string_view name, const std::vector<ColumnMove>& values) const {
    write_parts_of_rule(name, values);
  }
  void operator()(std::string_view name, const std::vector<ConvolvedRun>& values) const {
    write_parts_of_rule(name, values);
  }
  void operator()(std::string_view name, const IndexSet& values) const {
    for (const Run& value : values)
      write(value,
            dynamic_cast<proto::IndexRun&>(*reflection_.AddMessage(&message_, field_named(message_, name))));
  }
  void operator()(std::string_view name, const std::vector<View>& values) const {
    write_all<proto::View>(name, values);
  }
  void operator()(std::string_view name, const std::vector<Transfer>& values) const {
    write_all<proto::Transfer>(name, values);
  }
  void operator()(std::string_view name, const std::vector<MaskSlice>& values) const {
    write_all<proto::MaskSlice>(name, values);
  }

 private:
  template <class T>
  void write_parts_of_rule(std::string_view name, const std::vector<T>& values) const {
    const FieldDescriptor* list = field_named(message_, name);
    for (const T& value : values)
      visit_rule_fields(value, OperationWriter(*reflection_.AddMessage(&message_, list)));
  }
  template <class T>
  T& sub_message(std::string_view name) const {
    return dynamic_cast<T&>(*reflection_.MutableMessage(&message_, field_named(message_, name)));
  }
  template <class T, class Values>
  void write_all(std::string_view name, const Values& values) const {
    const FieldDescriptor* list = field_named(message_, name);
    for (const auto& value : values) write(value, dynamic_cast<T&>(*reflection_.AddMessage(&message_, list)));
  }

  Message& message_;
  const google::protobuf::Reflection& reflection_;
};

void write(const FusedAttention& fused, proto::FusedAttention& message) {
  visit_fields(fused, OperationWriter(message));
}

void write(const Step& step, proto::Step& message) {
  message.set_stream(step.stream);
  for (const Edge& edge : step.after) {
    proto::Edge& after = *message.add_after();
    after.set_step(edge.step);
    after.set_iterations_back(edge.iterations_back);
  }
  message.set_label(require_utf8(step.label, FieldPath("step.label")));
  visit_operation(step.work, [&](const auto& op) {
    const FieldDescriptor* work = field_named(message, kOperationName<std::remove_cvref_t<decltype(op)>>);
    visit_fields(op, OperationWriter(*message.GetReflection()->MutableMessage(&message, work)));
  });
}

}  // namespace

proto::Plan to_proto(const Plan& plan) {
  proto::Plan message;
  message.set_self(plan.self);
  write(plan.target, *message.mutable_target());
  for (const Group& group : plan.groups) *message.add_groups() = to_proto(group);
  for (const Buffer& buffer : plan.buffers) write(buffer, *message.add_buffers());
  for (const std::string& stream : plan.streams)
    message.add_streams(require_utf8(stream, FieldPath("plan.streams")));
  for (const Segment& segment : plan.segments) {
    proto::Segment& written = *message.add_segments();
    if (const Step* step = std::get_if<Step>(&segment)) {
      write(*step, *written.mutable_step());
    } else {
      const Repeat& repeat = std::get<Repeat>(segment);
      written.mutable_repeat()->set_count(repeat.count);
      for (const Step& inner : repeat.steps) write(inner, *written.mutable_repeat()->add_steps());
    }
  }
  message.set_arena_bytes(plan.arena_bytes);
  message.set_symmetric_bytes(plan.symmetric_bytes);
  *message.mutable_inputs() = to_proto(plan.inputs);
  *message.mutable_digest() = to_proto(digest(plan));
  return message;
}

std::string serialize_plan(const Plan& plan) {
  const proto::Plan message = to_proto(plan);
  if (message.ByteSizeLong() > kMaxPlanBytes) {
    throw InvalidInput(str("the plan of rank ", plan.self, " takes ", message.ByteSizeLong(),
                           " bytes, more than the ", kMaxPlanBytes, " bytes that can be read back"));
  }
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);
  CP_INVARIANT(message.SerializeToCodedStream(&out), "a plan of ", message.ByteSizeLong(), " bytes");
  out.Trim();
  return bytes;
}

Plan parse_plan_bytes(std::string_view bytes) {
  if (bytes.size() > kMaxPlanBytes) {
    throw InvalidInput(
        str("the plan has ", bytes.size(), " bytes, more than the ", kMaxPlanBytes, " bytes that are read"));
  }
  proto::Plan message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw InvalidInput(str("these ", bytes.size(), " bytes are not a plan, or they are cut off"));
  }
  if (!message.has_digest()) {
    throw InvalidInput(
        str("these ", bytes.size(), " bytes are not a plan, or they are cut off: the digest is missing"));
  }
  return from_proto(message);
}

}  // namespace cp
