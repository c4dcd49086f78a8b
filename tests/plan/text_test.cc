#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "tests/plan/every_field.h"
#include "tests/plan/random_plan.h"

namespace cp {
namespace {

Plan ring() {
  PlanBuilder b(0, host_target());
  const StreamId compute = b.stream("compute"), comm = b.stream("comm");
  const GroupId group = b.group("cp", {0, 1});
  const BufferId x = b.input("x", DType::f32, 256), y = b.output("y", DType::f32, 256);
  const BufferId kv = b.temporary("kv", DType::f32, 512);
  b.add(compute, Copy{flat_view(x, 0, 256), flat_view(kv, 0, 256)});
  b.add(compute, Fill{View{y, 4, {2, 8}, {16, 1}, {}}, 0.1}, "say \"hi\"");
  b.begin_repeat(4);
  b.add(comm, Exchange{group,
                       {{1, flat_view(kv, 0, 256, {256, 2, 0})}},
                       {{1, flat_view(kv, 0, 256, {256, 2, 1})}},
                       counts_digest({{0, 1, 256}, {1, 0, 256}})});
  b.add(compute,
        Accumulate{ReduceOp::sum, dense_view(kv, 0, {16, 16}, {256, 2, 0}), dense_view(y, 0, {16, 16})},
        "add");
  b.end_repeat();
  return std::move(b).build({1, 2});
}

TEST(PlanText, IsReadable) {
  const std::string expected =
      R"(plan rank 0 inputs 00000000000000010000000000000002 arena 2048
target "host" alignment 1)"
      " collectives all_gather,all_reduce,all_to_all,broadcast,exchange,reduce_scatter"
      " kernels "
      "accumulate,add_bias,attention_backward,attention_delta,attention_forward,attention_merge,"
      "attention_sink_gradient,cast,combine,copy,cross_entropy,cross_entropy_backward,"
      "decay_and_beta,decay_and_beta_backward,dispatch,embed,embed_backward,fill,gated_activation,"
      "gated_activation_backward,gated_norm,gated_norm_backward,group_bias,group_bias_backward,matmul,"
      "norm_sums,norm_sums_backward,"
      "optimizer,output_gate,output_gate_backward,recurrence_backward,recurrence_forward,recurrence_join,"
      "recurrence_summary,recurrence_summary_gradient,rms_norm,rms_norm_backward,rotary,rotary_backward,"
      "route,route_backward,scale,short_convolution,short_convolution_backward,squared_norm"
      R"( dtypes f32,f16,bf16,i32,i64
stream 0 "compute"
stream 1 "comm"
group 0 "cp" ranks 0,1
buffer 0 "x" input f32 256
buffer 1 "y" output f32 256
buffer 2 "kv" temporary f32 512 at 0 used 0..3
step 0 on 0 copy in=b0+0[256] out=b2+0[256]
step 1 on 0 fill out=b1+4[2x8:16x1] value=0.1 "say \"hi\""
repeat 4
  step 2 on 1 exchange group=0 sends=1:b2+0[256]~256%2+0 recvs=1:b2+0[256]~256%2+1 )"
      R"(counts=8f58f07dcbf0b3efda1daddc61140a63 after 0,3@1
  step 3 on 0 accumulate op=sum in=b2+0[16x16]~256%2+0 out=b1+0[16x16] after 2@1 "add"
end
)";
  EXPECT_EQ(to_text(ring()), expected);
}

TEST(PlanText, RowKernelsSayTheirOperation) {
  PlanBuilder b(0, shape_target());
  const BufferId x = b.inout("x", DType::f32, 8), y = b.output("y", DType::bf16, 8);
  b.add(b.stream("s"), RowKernel{RowOperation::gated_norm,
                                 {flat_view(x, 0, 4), dense_view(x, 4, {2, 2})},
                                 {flat_view(y, 0, 8)},
                                 {}});
  b.add(b.stream("s"), RowKernel{RowOperation::gated_activation,
                                 {dense_view(x, 0, {2, 4})},
                                 {dense_view(y, 0, {2, 2})},
                                 {},
                                 ActivationRule{ActivationFunction::gelu_tanh, true}});
  const std::string text = to_text(std::move(b).build({}));
  EXPECT_EQ(text.substr(text.find("step")),
            "step 0 on 0 row_kernel operation=gated_norm reads=b0+0[4],b0+4[2x2] writes=b1+0[8] updates=-\n"
            "step 1 on 0 row_kernel operation=gated_activation reads=b0+0[2x4] writes=b1+0[2x2] updates=- "
            "rule=activation/gelu_tanh/true/0/0/false\n");
}

// Texts of rules without a field that came later are those of before.
TEST(PlanText, RulesNameWhatTheyMayLeaveOut) {
  PlanBuilder b(0, shape_target());
  const BufferId x = b.inout("x", DType::f32, 8), y = b.output("y", DType::bf16, 8);
  for (const bool plain : {false, true}) {
    b.add(b.stream("s"), RowKernel{RowOperation::short_convolution,
                                   {dense_view(x, 0, {2, 2}), flat_view(x, 4, 2)},
                                   {dense_view(y, 4 * (plain ? 1 : 0), {2, 2})},
                                   {},
                                   ConvolutionRule{1, 1, {{0, 2, false, true}}, 0, 1e-6, plain}});
  }
  const Plan plan = std::move(b).build({});
  const std::string text = to_text(plan), rule = "rule=convolution/1/1/0:2:false:true/0/1e-06";
  EXPECT_NE(text.find(rule + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find(rule + "/plain=true\n"), std::string::npos) << text;
  EXPECT_TRUE(parse_plan(text) == plan);
}

void expect_round_trip(const Plan& plan) {
  const std::string text = to_text(plan);
  const Plan read = parse_plan(text);
  ASSERT_EQ(to_text(read), text);
  ASSERT_TRUE(read == plan) << text;
}

TEST(PlanText, EveryFieldComesBack) {
  expect_round_trip(Plan{});
  expect_round_trip(ring());
  Plan plan = test::plan_with_every_field();
  const auto check = [&] { expect_round_trip(plan); };
  check();
  test::Variations(check).of(plan);
  test::Variations(check).of_words(plan);
}

TEST(PlanText, ExtremeValuesComeBack) {
  Plan plan = test::plan_with_every_field();
  plan.streams = {"", "a\"b\\c\n\t\x01 \x7f \xc3\xa9", "\\x41"};
  plan.groups.push_back({"", {}});
  plan.arena_bytes = std::numeric_limits<std::int64_t>::min();
  plan.inputs = {~std::uint64_t{0}, 0};
  plan.buffers[0].numel = std::numeric_limits<std::int64_t>::max();
  plan.segments.emplace_back(Repeat{0, {}});
  for (const double value : {0.1, -1.0 / 3, 1e300, 5e-324, -0.0, std::numeric_limits<double>::infinity()}) {
    plan.segments.emplace_back(Step{0, Kernel(Fill{View{-1, -5, {}, {}, {}}, value}), {}, {}});
  }
  for (const View& view : {View{0, 0, {}, {1}, {}}, View{0, 0, {4}, {}, {}}, View{0, 0, {0, 3}, {3, 1}, {}},
                           View{0, 0, {1, -2}, {7, 7}, {-1, -2, -3}}}) {
    plan.segments.emplace_back(Step{-1, Kernel(Scale{view, 1}), {{-7, -1}}, {}});
  }
  expect_round_trip(plan);
}

RC_GTEST_PROP(PlanText, BuiltPlansComeBack, ()) {
  const Plan plan = test::random_plan();
  RC_ASSERT(parse_plan(to_text(plan)) == plan);
}

TEST(PlanText, BlanksAndEmptyLinesDoNotMatter) {
  std::string text = to_text(ring());
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 5)
    text.replace(at, 1, " \r\n\n\t");
  EXPECT_TRUE(parse_plan(text) == ring());
}

std::string error_of(const std::string& text) {
  try {
    parse_plan(text);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlanText, ErrorsNameLineAndColumn) {
  const std::string head = "plan rank 0 inputs 00000000000000000000000000000000 arena 0\n";
  const struct {
    std::string text, error;
  } cases[] = {
      {"", "line 1, column 1: expected a line 'plan rank ...' at the end of the line"},
      {"plan rank x", "line 1, column 11: expected a number at 'x'"},
      {"plan rank 99999999999", "line 1, column 11: expected a number of 32 bits at '99999999999'"},
      {"plan rank 0 inputs 12", "line 1, column 20: expected 16 hexadecimal digits at '12'"},
      {head + "steps",
       "line 2, column 1: expected one of plan, target, stream, group, buffer, step, repeat, end at 'steps'"},
      {head + "stream 1 \"a\"", "line 2, column 8: expected the number 0 at '1 \"a\"'"},
      {head + "stream 0 \"a", "line 2, column 12: expected a closing '\"' at the end of the line"},
      {head + "stream 0 \"\\n\"", "line 2, column 12: expected '\"', '\\' or xNN after '\\' at 'n\"'"},
      {head + "stream 0 \"a\" b", "line 2, column 14: expected the end of the line at 'b'"},
      {head + "buffer 0 \"x\" global f32 4",
       "line 2, column 14: expected one of input, output, inout, temporary at 'global f32 4'"},
      {head + "step 0 on 0 copies", "line 2, column 13: expected the name of an operation at 'copies'"},
      {head + "step 0 on 0 copy in=x", "line 2, column 21: expected 'b' at 'x'"},
      {head + "step 0 on 0 copy in=b0+0[4] in=b0+0[4]", "line 2, column 29: expected 'out' at 'in=b0+0[4]'"},
      {head + "step 0 on 0 copy in=b0+0[4", "line 2, column 27: expected ']' at the end of the line"},
      {head + "step 1 on 0 copy in=b0+0[4] out=b0+4[4]",
       "line 2, column 6: expected the number 0 at '1 on 0 copy in=b0+0[4] out=b0+'"},
      {head + "repeat 2\nrepeat 3", "line 3, column 1: expected 'end' of the repeat before at 'repeat 3'"},
      {head + "repeat 2\n", "line 3, column 1: expected 'end' of the repeat at the end of the line"},
      {head + "end", "line 2, column 1: expected a repeat before 'end' at 'end'"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(error_of(text), "plan text, " + error) << text;
  EXPECT_NE(error_of(head + "buffer 0 \"x\" input f33 4").find("column 20"), std::string::npos);
}

}  // namespace
}  // namespace cp
