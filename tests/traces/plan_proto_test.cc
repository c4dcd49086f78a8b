#include "traces/plan_proto.h"

#include <functional>
#include <limits>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "tests/support/any_case.h"
#include "tests/support/hand_plans.h"
#include "tests/support/messages.h"
#include "tests/support/plan_generators.h"
#include "traces/types_proto.h"

namespace cp {

void showValue(const Plan& plan, std::ostream& out) { out << to_proto(plan).DebugString(); }

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;

// One of nearly everything: two ranks, a step, a repeat.
Plan small_plan() {
  Plan plan;
  plan.self = 1;
  plan.target = host_target();
  plan.groups = {{"cp", {0, 1}}};
  plan.streams = {"compute", "comm"};
  plan.arena_bytes = 4096;
  plan.inputs = {3, 4};
  plan.buffers = {
      {.name = "x",
       .kind = BufferKind::input,
       .dtype = DType::f32,
       .numel = 64,
       .first_use = 0,
       .last_use = 2},
      {.name = "t", .kind = BufferKind::temporary, .dtype = DType::f32, .numel = 128, .offset_bytes = 512}};
  plan.segments = {
      Step{0, Kernel(Copy{flat_view(0, 0, 64), flat_view(1, 0, 64)}), {}, "pack"},
      Repeat{3,
             {Step{1,
                   Collective(AllReduce{0, ReduceOp::sum, flat_view(1, 0, 64), flat_view(1, 64, 64)}),
                   {{0, 0}},
                   "sum"},
              Step{1,
                   Collective(Exchange{
                       0, {{0, flat_view(1, 0, 8)}}, {{0, dense_view(1, 8, {2, 4}, {8, 2, 1})}}, {5, 6}}),
                   {},
                   "swap"}}},
      Step{1, Collective(Broadcast{0, 0, View{}, flat_view(1, 0, 64)}), {}, "from the root"}};
  return plan;
}

// What from_proto() says about the small plan after a change. The digest is left out: it would notice every
// one.
std::string error_after(const std::function<void(proto::Plan&)>& change) {
  proto::Plan message = to_proto(small_plan());
  message.clear_digest();
  change(message);
  return message_of([&] { from_proto(message); });
}

RC_GTEST_PROP(PlanProto, EveryPlanComesBackAsItWas, ()) {
  const Plan plan = *testing::any_plan_data();
  RC_ASSERT(from_proto(to_proto(plan)) == plan);
}

RC_GTEST_PROP(PlanProto, BytesComeBackAsThePlanAndAsThemselves, ()) {
  const Plan plan = *testing::any_plan_data();
  const std::string bytes = serialize_plan(plan);
  const Plan read = parse_plan_bytes(bytes);
  RC_ASSERT(read == plan);
  RC_ASSERT(digest(read) == digest(plan));
  RC_ASSERT(serialize_plan(read) == bytes);
}

TEST(PlanProto, HandWrittenPlansComeBackAsTheyWere) {
  for (const auto& hand_plan : testing::hand_plans(4)) {
    for (const Plan& plan : hand_plan.plans)
      EXPECT_EQ(parse_plan_bytes(serialize_plan(plan)), plan) << hand_plan.name;
  }
}

TEST(PlanProto, AnEmptyPlanComesBackAsItWas) { EXPECT_EQ(parse_plan_bytes(serialize_plan(Plan{})), Plan{}); }

// Bytes are the same in every process and release: these were written once. A change here is a change of the
// format.
TEST(PlanProto, BytesAreThoseOfTheFormat) {
  Plan plan;
  plan.self = 7;
  plan.target.name = "t";
  plan.streams = {"s"};
  plan.inputs = {1, 2};
  proto::Plan message = to_proto(plan);
  message.clear_digest();
  EXPECT_EQ(message.SerializeAsString(),
            std::string("\x08\x07"                   // self
                        "\x12\x05\x0a\x01t\x28\x01"  // target: name, alignment
                        "\x2a\x01s"                  // stream
                        "\x42\x12\x09\x01\0\0\0\0\0\0\0\x11\x02\0\0\0\0\0\0\0",
                        2 + 7 + 3 + 20));
}

// plan.proto and plan.h have the same operations with the same fields, so that none is left out in silence.
TEST(PlanProto, OperationsHaveTheFieldsOfPlanH) {
  const auto* work = proto::Step::descriptor()->FindOneofByName("work");
  std::set<std::string> operations, messages;
  const auto collect = [&]<class... Ops>(std::variant<Ops...>*) {
    const auto one = [&]<class Op>(Op op) {
      const FieldDescriptor* field =
          proto::Step::descriptor()->FindFieldByName(std::string(kOperationName<Op>));
      ASSERT_NE(field, nullptr) << kOperationName<Op>;
      EXPECT_EQ(field->containing_oneof(), work);
      operations.insert(field->name());
      std::set<std::string> names, fields;
      visit_fields(op, [&](std::string_view name, const auto&) { names.emplace(name); });
      for (int i = 0; i < field->message_type()->field_count(); ++i)
        fields.insert(field->message_type()->field(i)->name());
      EXPECT_EQ(names, fields) << kOperationName<Op>;
    };
    (one(Ops{}), ...);
  };
  collect(static_cast<Kernel*>(nullptr));
  collect(static_cast<Collective*>(nullptr));
  for (int i = 0; i < work->field_count(); ++i) messages.insert(work->field(i)->name());
  EXPECT_EQ(operations, messages);
}

TEST(PlanProto, ErrorsNameTheFieldAndItsValue) {
  const struct {
    std::function<void(proto::Plan&)> change;
    std::string message;
  } rows[] = {
      {[](auto& p) { p.set_self(-1); }, "plan.self is -1"},
      {[](auto& p) { p.set_arena_bytes(-8); }, "plan.arena_bytes is -8"},
      {[](auto& p) { p.clear_target(); }, "plan.target.alignment_bytes is 0"},
      {[](auto& p) { p.mutable_target()->add_kernels("copy"); }, "plan.target.kernels[45] comes twice"},
      {[](auto& p) { p.mutable_target()->set_dtypes(1, static_cast<proto::DType>(99)); },
       "plan.target.dtypes[1] is 99"},
      {[](auto& p) { p.mutable_groups(0)->set_ranks(1, -2); }, "plan.groups[0].ranks[1] is -2"},
      {[](auto& p) { p.mutable_buffers(0)->set_kind(static_cast<proto::BufferKind>(9)); },
       "plan.buffers[0].kind is 9, which this version does not know; use one of input=1, output=2, inout=3, "
       "temporary=4"},
      {[](auto& p) { p.mutable_buffers(1)->clear_dtype(); },
       "plan.buffers[1].dtype is not set; use one of f32=1"},
      {[](auto& p) { p.mutable_buffers(0)->set_numel(-1); }, "plan.buffers[0].numel is -1"},
      {[](auto& p) { p.mutable_buffers(0)->set_numel(std::int64_t{1} << 61); },
       "plan.buffers[0].numel is 2305843009213693952"},
      {[](auto& p) { p.mutable_buffers(1)->set_offset_bytes(-4); }, "plan.buffers[1].offset_bytes is -4"},
      {[](auto& p) { p.mutable_buffers(1)->set_offset_bytes(std::numeric_limits<std::int64_t>::max()); },
       "plan.buffers[1] has 512 bytes at 9223372036854775807, but the arena has 4096"},
      {[](auto& p) { p.mutable_buffers(1)->set_offset_bytes(3585); },
       "plan.buffers[1] has 512 bytes at 3585"},
      {[](auto& p) { p.mutable_buffers(0)->set_last_use(4); },
       "plan.buffers[0].last_use is 4, but there are 4 steps (-1: none); use 0 to 3"},
      {[](auto& p) { p.mutable_buffers(0)->set_first_use(-2); }, "plan.buffers[0].first_use is -2"},
      {[](auto& p) { p.mutable_segments(0)->Clear(); }, "plan.segments[0] is neither a step nor a repeat"},
      {[](auto& p) { p.mutable_segments(1)->mutable_repeat()->set_count(-1); },
       "plan.segments[1].repeat.count is -1"},
      {[](auto& p) { p.mutable_segments(0)->mutable_step()->clear_work(); },
       "plan.segments[0].step has no operation"},
      {[](auto& p) { p.mutable_segments(0)->mutable_step()->set_stream(2); },
       "plan.segments[0].step.stream is 2, but there are 2 streams; use 0 to 1"},
      {[](auto& p) { p.mutable_segments(0)->mutable_step()->mutable_copy()->clear_in(); },
       "plan.segments[0].step.copy.in is missing"},
      {[](auto& p) { p.mutable_segments(0)->mutable_step()->mutable_copy()->mutable_out()->set_buffer(2); },
       "plan.segments[0].step.copy.out.buffer is 2, but there are 2 buffers; use 0 to 1"},
      {[](auto& p) { p.mutable_segments(0)->mutable_step()->mutable_copy()->mutable_in()->add_shape(1); },
       "plan.segments[0].step.copy.in has 2 sizes but 1 strides"},
      {[](auto& p) { p.mutable_segments(0)->mutable_step()->mutable_copy()->mutable_in()->set_shape(0, -3); },
       "plan.segments[0].step.copy.in.shape[0] is -3"},
      {[](auto& p) {
         p.mutable_segments(0)->mutable_step()->mutable_copy()->mutable_in()->set_strides(0, -1);
       },
       "plan.segments[0].step.copy.in.strides[0] is -1"},
      {[](auto& p) {
         p.mutable_segments(0)->mutable_step()->mutable_copy()->mutable_in()->set_offset(std::int64_t{1}
                                                                                         << 60);
       },
       "plan.segments[0].step.copy.in.offset is 1152921504606846976"},
      {[](auto& p) {
         p.mutable_segments(1)
             ->mutable_repeat()
             ->mutable_steps(1)
             ->mutable_exchange()
             ->mutable_recvs(0)
             ->mutable_view()
             ->mutable_advance()
             ->set_period(-1);
       },
       "plan.segments[1].repeat.steps[1].exchange.recvs[0].view.advance.period is -1"},
      {[](auto& p) {
         p.mutable_segments(1)
             ->mutable_repeat()
             ->mutable_steps(1)
             ->mutable_exchange()
             ->mutable_sends(0)
             ->set_peer(2);
       },
       "plan.segments[1].repeat.steps[1].exchange.sends[0].peer is 2, but there are 2 ranks in the group; "
       "use 0 to 1"},
      {[](auto& p) {
         p.mutable_segments(1)->mutable_repeat()->mutable_steps(0)->mutable_all_reduce()->set_group(1);
       },
       "plan.segments[1].repeat.steps[0].all_reduce.group is 1, but there are 1 groups; use 0 to 0"},
      {[](auto& p) {
         p.mutable_segments(1)->mutable_repeat()->mutable_steps(0)->mutable_all_reduce()->set_op(
             static_cast<proto::ReduceOp>(6));
       },
       "plan.segments[1].repeat.steps[0].all_reduce.op is 6, which this version does not know; use one of "
       "sum=1"},
      {[](auto& p) {
         p.mutable_segments(1)->mutable_repeat()->mutable_steps(0)->mutable_after(0)->set_step(4);
       },
       "plan.segments[1].repeat.steps[0].after[0].step is 4, but there are 4 steps; use 0 to 3"},
      {[](auto& p) {
         p.mutable_segments(1)->mutable_repeat()->mutable_steps(0)->mutable_after(0)->set_iterations_back(-1);
       },
       "plan.segments[1].repeat.steps[0].after[0].iterations_back is -1"},
      {[](auto& p) { p.mutable_segments(2)->mutable_step()->mutable_broadcast()->set_root(2); },
       "plan.segments[2].step.broadcast.root is 2, but there are 2 ranks in the group; use 0 to 1"},
      {[](auto& p) { p.mutable_segments(2)->mutable_step()->mutable_broadcast()->clear_out(); },
       "plan.segments[2].step.broadcast.out is missing"},
      {[](auto& p) {
         auto* forward = p.mutable_segments(0)->mutable_step()->mutable_attention_forward();
         for (auto* view : {forward->mutable_q(), forward->mutable_k(), forward->mutable_v(),
                            forward->mutable_out(), forward->mutable_lse()}) {
           view->set_buffer(0);
         }
         forward->add_slices()->set_kind(proto::full);
         forward->add_slices()->set_kind(static_cast<proto::MaskKind>(4));
       },
       "plan.segments[0].step.attention_forward.slices[1].kind is 4"},
  };
  for (const auto& row : rows) EXPECT_THAT(error_after(row.change), StartsWith(row.message));
}

// Numbers whose products or sums exceed 64 bits never reach code that multiplies them.
TEST(PlanProto, SizesThatOverflowAreRefused) {
  EXPECT_THAT(
      error_after([](proto::Plan& p) {
        auto* view = p.mutable_segments(0)->mutable_step()->mutable_copy()->mutable_in();
        view->clear_shape();
        view->clear_strides();
        for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1} << 31, std::int64_t{1} << 31}) {
          view->add_shape(size);
          view->add_strides(0);
        }
      }),
      StartsWith("plan.segments[0].step.copy.in.shape[2] is 2147483648; use 0 to 536870911"));
  EXPECT_THAT(error_after([](proto::Plan& p) {
                for (int i = 0; i < 8; ++i) {
                  auto* buffer = p.add_buffers();
                  buffer->set_kind(proto::input);
                  buffer->set_dtype(proto::i64);
                  buffer->set_numel(std::int64_t{1} << 58);
                }
              }),
              StartsWith("plan.buffers[5] makes the plan's memory exceed 2^63 bytes"));
}

TEST(PlanProto, ADigestOfAnotherPlanIsRefused) {
  proto::Plan message = to_proto(small_plan());
  message.mutable_segments(1)->mutable_repeat()->set_count(4);
  EXPECT_THAT(message_of([&] { from_proto(message); }),
              AllOf(StartsWith("plan.digest is " + to_string(digest(small_plan()))),
                    HasSubstr("somebody changed the plan")));
}

TEST(PlanProto, NamesMustBeUtf8) {
  const std::string bad[] = {
      "\xff", "a\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5", "\xe2\x82"};
  for (const std::string& text : bad) {
    EXPECT_THAT(message_of([&] { require_utf8(text, FieldPath("x")); }), HasSubstr("not UTF-8"));
  }
  for (const std::string& text : {std::string(), std::string("plain"), std::string("é"), std::string("→"),
                                  std::string("𝛼"), std::string("\0", 1), std::string("\xf4\x8f\xbf\xbf")}) {
    EXPECT_EQ(require_utf8(text, FieldPath("x")), text);
  }
  Plan plan = small_plan();
  plan.buffers[0].name = "x\xff";
  EXPECT_EQ(message_of([&] { serialize_plan(plan); }),
            "buffer.name is 'x\\xff', which is not UTF-8 at byte 1");
  Plan labelled = small_plan();
  std::get<Step>(labelled.segments[0]).label = "\xc3";
  EXPECT_THAT(message_of([&] { to_proto(labelled); }), StartsWith("step.label is '\\xc3'"));
}

TEST(PlanProto, BytesThatAreCutOffAreNoPlan) {
  const std::string bytes = serialize_plan(small_plan());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(message_of([&] { parse_plan_bytes(bytes.substr(0, size)); }),
                HasSubstr("not a plan, or they are cut off"))
        << size << " of " << bytes.size();
  }
}

// A changed byte is refused, or changes nothing but a name or a label.
TEST(PlanProto, ChangedBytesAreRefused) {
  const std::string bytes = serialize_plan(small_plan());
  int accepted = 0;
  ::testing::internal::CaptureStderr();  // protobuf logs text that is not UTF-8
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      try {
        EXPECT_EQ(digest(parse_plan_bytes(changed)), digest(small_plan())) << "byte " << at << " bit " << bit;
        ++accepted;
      } catch (const InvalidInput&) {
      }
    }
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, static_cast<int>(bytes.size()) * 8 / 4);
}

RC_GTEST_PROP(PlanProto, AnyBytesAreAPlanOrAnError, ()) {
  const auto bytes = pick("bytes", rc::gen::container<std::string>(rc::gen::arbitrary<char>()));
  message_of([&] { parse_plan_bytes(bytes); });
}

// Sets one field, anywhere in a message of a plan, to a value at the edge of its type.
void disturb(Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  if (fields.empty()) return;
  const FieldDescriptor* field = *rc::gen::elementOf(fields);
  const auto& reflection = *message.GetReflection();
  const auto number = *rc::gen::element<std::int64_t>(
      0, -1, 1, 2, 5, std::int64_t{1} << 60, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max(),
      std::numeric_limits<std::int64_t>::min());
  const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
  const int at = *rc::gen::inRange(0, size);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (*rc::gen::inRange(0, 10) == 0) return reflection.ClearField(&message, field);
      return disturb(field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, at)
                                          : *reflection.MutableMessage(&message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return field->is_repeated() ? reflection.SetRepeatedInt64(&message, field, at, number)
                                  : reflection.SetInt64(&message, field, number);
    case FieldDescriptor::CPPTYPE_INT32:
      return field->is_repeated()
                 ? reflection.SetRepeatedInt32(&message, field, at, static_cast<std::int32_t>(number))
                 : reflection.SetInt32(&message, field, static_cast<std::int32_t>(number));
    case FieldDescriptor::CPPTYPE_ENUM:
      return field->is_repeated()
                 ? reflection.SetRepeatedEnumValue(&message, field, at, static_cast<int>(number))
                 : reflection.SetEnumValue(&message, field, static_cast<int>(number));
    default:
      return;
  }
}

// Hostile messages are refused, or are plans that can be looked at: the sanitizers watch.
RC_GTEST_PROP(PlanProto, DisturbedMessagesAreRefusedOrCanBeLookedAt, ()) {
  proto::Plan message = to_proto(*testing::any_plan_data());
  message.clear_digest();
  for (int i = pick("disturbances", rc::gen::inRange(1, 4)); i > 0; --i) disturb(message);
  Plan plan;
  try {
    plan = from_proto(message);
  } catch (const InvalidInput& error) {
    RC_ASSERT(std::string(error.what()).starts_with("plan."));
    return;
  }
  RC_ASSERT(from_proto(to_proto(plan)) == plan);
  RC_ASSERT(peak_bytes(plan) >= plan.arena_bytes);
  for (const StepRef& ref : steps_of(plan)) {
    for (const Access& access : accesses(ref.step->work)) {
      if (access.view->buffer < 0) continue;
      RC_ASSERT(access.view->numel() >= 0);
      is_contiguous(*access.view);
    }
  }
}

}  // namespace
}  // namespace cp
