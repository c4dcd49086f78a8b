#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "traces/plan_fields.h"
#include "traces/plan_proto.h"
#include "traces/types_proto.h"

namespace cp {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using traces::field_named;
using traces::kBufferKinds;
using traces::kMaskKinds;

// The most elements of a buffer, and the longest stride. With elements of 8 bytes, 2^60 of them would be 2^63
// bytes, one more than 64 bits hold.
constexpr std::int64_t kMaxElements = (std::int64_t{1} << 60) - 1;

// Calls read(element, path of the element) for each one and collects what it returns.
template <class List, class Read>
auto read_all(const List& list, const FieldPath& parent, std::string_view name, Read&& read) {
  std::vector<std::decay_t<decltype(read(list.Get(0), parent))>> values;
  values.reserve(static_cast<std::size_t>(list.size()));
  for (int i = 0; i < list.size(); ++i) values.push_back(read(list.Get(i), FieldPath(parent, name, i)));
  return values;
}

// The list as a set; what comes twice is refused, since it would not be written back.
template <class List, class Read>
auto read_set(const List& list, const FieldPath& parent, std::string_view name, Read&& read) {
  std::set<std::decay_t<decltype(read(list.Get(0), parent))>> values;
  for (int i = 0; i < list.size(); ++i) {
    const FieldPath path(parent, name, i);
    if (!values.insert(read(list.Get(i), path)).second) path.fail("comes twice");
  }
  return values;
}

Target read_target(const proto::Target& message, const FieldPath& path) {
  const auto text = [](const std::string& name, const FieldPath&) { return name; };
  const auto dtype = [](int value, const FieldPath& at) {
    return from_proto(static_cast<proto::DType>(value), at);
  };
  FieldPath(path, "alignment_bytes").require_range(message.alignment_bytes(), 1, kMaxElements);
  std::optional<FusedAttention> fused;
  if (message.has_fused_attention()) {
    const FieldPath at(path, "fused_attention");
    const proto::FusedAttention& asked = message.fused_attention();
    fused = {.dtypes = read_set(asked.dtypes(), at, "dtypes", dtype),
             .head_dim_multiple = asked.head_dim_multiple(),
             .max_head_dim_forward = asked.max_head_dim_forward(),
             .max_head_dim_backward = asked.max_head_dim_backward(),
             .window = asked.window(),
             .window_tail = asked.window_tail(),
             .packed = asked.packed(),
             .sm_count = asked.sm_count()};
    FieldPath(at, "head_dim_multiple").require_range(fused->head_dim_multiple, 1, kMaxElements);
    FieldPath(at, "max_head_dim_forward").require_range(fused->max_head_dim_forward, 0, kMaxElements);
    FieldPath(at, "max_head_dim_backward").require_range(fused->max_head_dim_backward, 0, kMaxElements);
    FieldPath(at, "sm_count").require_range(fused->sm_count, 0, kMaxElements);
  }
  return {.name = message.name(),
          .collectives = read_set(message.collectives(), path, "collectives", text),
          .kernels = read_set(message.kernels(), path, "kernels", text),
          .dtypes = read_set(message.dtypes(), path, "dtypes", dtype),
          .alignment_bytes = message.alignment_bytes(),
          .fused_attention = std::move(fused),
          .sm_only = read_set(message.sm_only(), path, "sm_only", text)};
}

MaskSlice read_slice(const proto::MaskSlice& message, const FieldPath& path) {
  const auto size = [&](std::string_view name, std::int64_t value) {
    FieldPath(path, name).require_range(value, 0, kMaxElements);
    return value;
  };
  FieldPath(path, "diagonal").require_range(message.diagonal(), -kMaxElements, kMaxElements);
  return {.q_begin = size("q_begin", message.q_begin()),
          .q_len = size("q_len", message.q_len()),
          .k_begin = size("k_begin", message.k_begin()),
          .k_len = size("k_len", message.k_len()),
          .kind = kMaskKinds.from_proto(message.kind(), FieldPath(path, "kind")),
          .diagonal = message.diagonal(),
          .window = size("window", message.window())};
}

Run read_run(const proto::IndexRun& run, const FieldPath& path) {
  for (const auto& [field, value] : {std::pair("begin", run.begin()), std::pair("run", run.run()),
                                     std::pair("stride", run.stride()), std::pair("count", run.count())}) {
    FieldPath(path, field).require_range(value, 0, kMaxElements);
  }
  return {run.begin(), run.run(), run.stride(), run.count()};
}

IndexSet read_rows(const google::protobuf::RepeatedPtrField<proto::IndexRun>& list, const FieldPath& parent,
                   std::string_view name) {
  IndexSet rows;
  for (int i = 0; i < list.size(); ++i) rows.push_back(read_run(list.Get(i), FieldPath(parent, name, i)));
  return rows;
}

AttentionDropout read_dropout(const proto::AttentionDropout& message, const FieldPath& path) {
  const auto number = [&](std::string_view name, std::int64_t value) {
    FieldPath(path, name).require_range(value, 0, kMaxElements);
    return value;
  };
  return {.probability = message.probability(),
          .layer = number("layer", message.layer()),
          .first_batch = number("first_batch", message.first_batch()),
          .first_head = number("first_head", message.first_head()),
          .heads = number("heads", message.heads()),
          .queries = read_rows(message.queries(), path, "queries"),
          .keys = read_rows(message.keys(), path, "keys")};
}

// Makes the operation of that name, with defaults; nothing when there is none.
template <class Kind>
std::optional<Kind> make_operation(std::string_view name) {
  std::optional<Kind> made;
  const auto try_one = [&]<class Op>(std::type_identity<Op>) {
    if (name == kOperationName<Op>) made = Op{};
  };
  [&]<class... Ops>(std::type_identity<std::variant<Ops...>>) {
    (try_one(std::type_identity<Ops>{}), ...);
  }(std::type_identity<Kind>{});
  return made;
}

class PlanReader {
 public:
  explicit PlanReader(const proto::Plan& message) : message_(message) {}

  Plan read() {
    const FieldPath root("plan");
    count_steps();
    FieldPath(root, "self").require_range(message_.self(), 0, std::numeric_limits<Rank>::max());
    FieldPath(root, "arena_bytes").require_not_negative(message_.arena_bytes());
    plan_.self = message_.self();
    plan_.arena_bytes = message_.arena_bytes();
    FieldPath(root, "symmetric_bytes").require_range(message_.symmetric_bytes(), 0, plan_.arena_bytes);
    plan_.symmetric_bytes = message_.symmetric_bytes();
    plan_.target = read_target(message_.target(), FieldPath(root, "target"));
    plan_.streams.assign(message_.streams().begin(), message_.streams().end());
    plan_.inputs = from_proto(message_.inputs());
    plan_.groups =
        read_all(message_.groups(), root, "groups",
                 [](const proto::Group& group, const FieldPath& path) { return from_proto(group, path); });
    read_buffers(root);
    plan_.segments =
        read_all(message_.segments(), root, "segments",
                 [&](const proto::Segment& segment, const FieldPath& path) { return read(segment, path); });
    return std::move(plan_);
  }

 private:
  void count_steps() {
    for (const proto::Segment& segment : message_.segments()) {
      num_steps_ += segment.has_repeat() ? static_cast<std::size_t>(segment.repeat().steps_size()) : 1;
    }
  }

  void read_buffers(const FieldPath& root) {
    plan_.buffers =
        read_all(message_.buffers(), root, "buffers",
                 [&](const proto::Buffer& buffer, const FieldPath& path) { return read(buffer, path); });
    std::int64_t room = std::numeric_limits<std::int64_t>::max() -
                        plan_.arena_bytes;  // so that peak_bytes() does not overflow
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      if (plan_.buffers[i].kind == BufferKind::temporary) continue;
      if (plan_.buffers[i].bytes() > room) {
        FieldPath(root, "buffers", static_cast<int>(i)).fail("makes the plan's memory exceed 2^63 bytes");
      }
      room -= plan_.buffers[i].bytes();
    }
  }

  Buffer read(const proto::Buffer& message, const FieldPath& path) const {
    Buffer buffer{.name = message.name(),
                  .kind = kBufferKinds.from_proto(message.kind(), FieldPath(path, "kind")),
                  .dtype = from_proto(message.dtype(), FieldPath(path, "dtype")),
                  .numel = message.numel(),
                  .symmetric = message.symmetric(),
                  .offset_bytes = message.offset_bytes(),
                  .first_use = message.first_use(),
                  .last_use = message.last_use()};
    FieldPath(path, "numel").require_range(buffer.numel, 0, kMaxElements);
    FieldPath(path, "offset_bytes").require_not_negative(buffer.offset_bytes);
    for (const auto& [name, step] :
         {std::pair("first_use", buffer.first_use), std::pair("last_use", buffer.last_use)}) {
      if (step != -1) FieldPath(path, name).require_index(step, num_steps_, "steps (-1: none)");
    }
    if (buffer.kind == BufferKind::temporary && buffer.bytes() > plan_.arena_bytes - buffer.offset_bytes) {
      path.fail("has ", buffer.bytes(), " bytes at ", buffer.offset_bytes, ", but the arena has ",
                plan_.arena_bytes);
    }
    return buffer;
  }

  Segment read(const proto::Segment& message, const FieldPath& path) const {
    if (message.has_step()) return read(message.step(), FieldPath(path, "step"));
    const FieldPath at(path, "repeat");
    if (!message.has_repeat()) path.fail("is neither a step nor a repeat that this version knows");
    FieldPath(at, "count").require_not_negative(message.repeat().count());
    return Repeat{message.repeat().count(), read_all(message.repeat().steps(), at, "steps",
                                                     [&](const proto::Step& step, const FieldPath& where) {
                                                       return read(step, where);
                                                     })};
  }

  Step read(const proto::Step& message, const FieldPath& path) const {
    FieldPath(path, "stream").require_index(message.stream(), plan_.streams.size(), "streams");
    return {.stream = message.stream(),
            .work = read_work(message, path),
            .after = read_all(message.after(), path, "after",
                              [&](const proto::Edge& edge, const FieldPath& at) { return read(edge, at); }),
            .label = message.label()};
  }

  Edge read(const proto::Edge& message, const FieldPath& path) const {
    FieldPath(path, "step").require_index(message.step(), num_steps_, "steps");
    FieldPath(path, "iterations_back")
        .require_range(message.iterations_back(), 0, std::numeric_limits<std::int32_t>::max());
    return {message.step(), message.iterations_back()};
  }

  Work read_work(const proto::Step& message, const FieldPath& path) const {
    const auto* oneof = message.GetDescriptor()->FindOneofByName("work");
    const FieldDescriptor* field = message.GetReflection()->GetOneofFieldDescriptor(message, oneof);
    if (field == nullptr) path.fail("has no operation that this version knows");
    std::optional<Work> work = make_operation<Kernel>(field->name());
    if (!work) work = make_operation<Collective>(field->name());
    CP_INVARIANT(work.has_value(), "plan.proto: no operation is named ", field->name());
    const Message& operation = message.GetReflection()->GetMessage(message, field);
    const FieldPath at(path, field->name());
    visit_operation(*work, [&]<class Op>(Op& op) {
      visit_fields(op, [&]<class Field>(std::string_view name, Field& value) {
        if constexpr (std::is_same_v<Field, View>) {
          if (may_be_absent<Op>(name) &&
              !operation.GetReflection()->HasField(operation, field_named(operation, name)))
            return;
        }
        read_field(operation, name, at, value);
      });
      check_indices(op, at);
    });
    return *std::move(work);
  }

  // ---- fields of operations, by the type that plan.h gives them ----

  void read_field(const Message& op, std::string_view name, const FieldPath&, std::int32_t& value) const {
    value = op.GetReflection()->GetInt32(op, field_named(op, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath&, double& value) const {
    value = op.GetReflection()->GetDouble(op, field_named(op, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath&, bool& value) const {
    value = op.GetReflection()->GetBool(op, field_named(op, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path, ReduceOp& value) const {
    const int number = op.GetReflection()->GetEnumValue(op, field_named(op, name));
    value = from_proto(static_cast<proto::ReduceOp>(number), FieldPath(path, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  RowOperation& value) const {
    const int number = op.GetReflection()->GetEnumValue(op, field_named(op, name));
    value =
        traces::kRowOperations.from_proto(static_cast<proto::RowOperation>(number), FieldPath(path, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  AttentionEngine& value) const {
    const int number = op.GetReflection()->GetEnumValue(op, field_named(op, name));
    value = traces::kAttentionEngines.from_proto(static_cast<proto::AttentionEngine>(number),
                                                 FieldPath(path, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  RecurrenceRule& value) const {
    const int number = op.GetReflection()->GetEnumValue(op, field_named(op, name));
    value = traces::kRecurrenceRules.from_proto(static_cast<proto::RecurrenceRule>(number),
                                                FieldPath(path, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  std::vector<std::int64_t>& values) const {
    const FieldDescriptor* list = field_named(op, name);
    for (int i = 0; i < op.GetReflection()->FieldSize(op, list); ++i) {
      values.push_back(op.GetReflection()->GetRepeatedInt64(op, list, i));
      FieldPath(path, name, i).require_range(values.back(), 0, kMaxElements);
    }
  }
  void read_field(const Message& op, std::string_view name, const FieldPath&, Digest& value) const {
    value = from_proto(sub_message<proto::Digest>(op, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path, View& value) const {
    const FieldPath at(path, name);
    if (!op.GetReflection()->HasField(op, field_named(op, name))) at.fail("is missing");
    value = read(sub_message<proto::View>(op, name), at);
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  std::vector<View>& values) const {
    read_messages<proto::View>(op, name, path, [&](const proto::View& view, const FieldPath& at) {
      values.push_back(read(view, at));
    });
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  std::vector<Transfer>& values) const {
    read_messages<proto::Transfer>(op, name, path, [&](const proto::Transfer& transfer, const FieldPath& at) {
      const View there = transfer.has_there() ? read(transfer.there(), FieldPath(at, "there")) : View{};
      values.push_back({transfer.peer(), read(transfer.view(), FieldPath(at, "view")), there});
    });
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  std::vector<MaskSlice>& values) const {
    read_messages<proto::MaskSlice>(op, name, path, [&](const proto::MaskSlice& slice, const FieldPath& at) {
      values.push_back(read_slice(slice, at));
    });
  }

  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  AttentionDropout& value) const {
    value = read_dropout(sub_message<proto::AttentionDropout>(op, name), FieldPath(path, name));
  }

  // Of rules.
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  std::int64_t& value) const {
    value = op.GetReflection()->GetInt64(op, field_named(op, name));
    FieldPath(path, name).require_range(value, -kMaxElements, kMaxElements);
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  ActivationFunction& value) const {
    const int number = op.GetReflection()->GetEnumValue(op, field_named(op, name));
    value = traces::kActivationFunctions.from_proto(static_cast<proto::ActivationFunction>(number),
                                                    FieldPath(path, name));
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  std::vector<ColumnMove>& values) const {
    read_parts_of_rule<proto::ColumnMove>(op, name, path, values);
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path,
                  std::vector<ConvolvedRun>& values) const {
    read_parts_of_rule<proto::ConvolvedRun>(op, name, path, values);
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path, IndexSet& values) const {
    read_messages<proto::IndexRun>(op, name, path, [&](const proto::IndexRun& run, const FieldPath& at) {
      values.push_back(read_run(run, at));
    });
  }
  void read_field(const Message& op, std::string_view name, const FieldPath& path, RowRule& value) const {
    const Message& rule = sub_message<proto::RowRule>(op, name);
    const auto* oneof = rule.GetDescriptor()->FindOneofByName("rule");
    const FieldDescriptor* field = rule.GetReflection()->GetOneofFieldDescriptor(rule, oneof);
    if (field == nullptr) return;
    CP_INVARIANT(choose_rule(value, field->name()), "plan.proto: no rule is named ", field->name());
    const Message& fields = rule.GetReflection()->GetMessage(rule, field);
    const FieldPath rules(path, name), at(rules, field->name());
    std::visit(
        [&](auto& chosen) {
          visit_rule_fields(
              chosen, [&](std::string_view each, auto& number) { read_field(fields, each, at, number); });
        },
        value);
  }

  template <class M, class T>
  void read_parts_of_rule(const Message& op, std::string_view name, const FieldPath& path,
                          std::vector<T>& values) const {
    read_messages<M>(op, name, path, [&](const Message& message, const FieldPath& at) {
      T& part = values.emplace_back();
      visit_rule_fields(part,
                        [&](std::string_view field, auto& value) { read_field(message, field, at, value); });
    });
  }
  template <class T, class Read>
  static void read_messages(const Message& op, std::string_view name, const FieldPath& path, Read&& read) {
    const FieldDescriptor* list = field_named(op, name);
    const int size = op.GetReflection()->FieldSize(op, list);
    for (int i = 0; i < size; ++i) {
      read(dynamic_cast<const T&>(op.GetReflection()->GetRepeatedMessage(op, list, i)),
           FieldPath(path, name, i));
    }
  }

  template <class T>
  static const T& sub_message(const Message& op, std::string_view name) {
    return dynamic_cast<const T&>(op.GetReflection()->GetMessage(op, field_named(op, name)));
  }

  View read(const proto::View& message, const FieldPath& path) const {
    FieldPath(path, "buffer").require_index(message.buffer(), plan_.buffers.size(), "buffers");
    FieldPath(path, "offset").require_range(message.offset(), -kMaxElements, kMaxElements);
    if (message.shape_size() != message.strides_size()) {
      path.fail("has ", message.shape_size(), " sizes but ", message.strides_size(), " strides");
    }
    std::int64_t room = kMaxElements;  // zeros left out: their order must not matter
    for (int dim = 0; dim < message.shape_size(); ++dim) {
      const std::int64_t size = message.shape(dim);
      FieldPath(path, "shape", dim).require_range(size, 0, room);
      FieldPath(path, "strides", dim).require_range(message.strides(dim), 0, kMaxElements);
      if (size > 0) room /= size;
    }
    return {.buffer = message.buffer(),
            .offset = message.offset(),
            .shape = {message.shape().begin(), message.shape().end()},
            .strides = {message.strides().begin(), message.strides().end()},
            .advance = read(message.advance(), FieldPath(path, "advance"))};
  }

  static Advance read(const proto::Advance& message, const FieldPath& path) {
    FieldPath(path, "stride").require_range(message.stride(), -kMaxElements, kMaxElements);
    FieldPath(path, "period").require_range(message.period(), 0, kMaxElements);
    FieldPath(path, "phase").require_range(message.phase(), 0, kMaxElements);
    return {message.stride(), message.period(), message.phase()};
  }

  template <class Op>
  void check_indices(const Op& op, const FieldPath& path) const {
    if constexpr (requires { op.group; }) {
      FieldPath(path, "group").require_index(op.group, plan_.groups.size(), "groups");
      [[maybe_unused]] const std::size_t size = plan_.groups[static_cast<std::size_t>(op.group)].ranks.size();
      if constexpr (requires { op.root; })
        FieldPath(path, "root").require_index(op.root, size, "ranks in the group");
      if constexpr (requires { op.sends; }) {
        check_peers(op.sends, path, "sends", size);
        check_peers(op.recvs, path, "recvs", size);
      }
    }
  }
  static void check_peers(const std::vector<Transfer>& transfers, const FieldPath& path,
                          std::string_view name, std::size_t group_size) {
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const FieldPath at(path, name, static_cast<int>(i));
      FieldPath(at, "peer").require_index(transfers[i].peer, group_size, "ranks in the group");
    }
  }

  const proto::Plan& message_;
  std::size_t num_steps_ = 0;
  Plan plan_;
};

}  // namespace

Plan from_proto(const proto::Plan& message) {
  Plan plan = PlanReader(message).read();
  if (message.has_digest() && from_proto(message.digest()) != digest(plan)) {
    FieldPath("plan.digest")
        .fail("is ", to_string(from_proto(message.digest())), ", but the plan that was read has ",
              to_string(digest(plan)), "; somebody changed the plan, or another version wrote it");
  }
  return plan;
}

}  // namespace cp
