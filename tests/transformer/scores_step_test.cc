// Sinks and caps of scores in the steps of models.
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/operations.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/weights.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

StepRequest with_sinks(const char* layout) {
  StepRequest request = small_request(layout);
  request.model.sinks = true;
  return request;
}

LayerWeights weights_of(const StepRequest& request) {
  return {request.model, local_sizes(request.model, request.workload, request.layout), LayerParts{}};
}

// Of all steps with this operation, how many times each runs, and what it is.
template <class T>
std::vector<std::pair<std::int64_t, T>> all_of(const Plan& plan) {
  std::vector<std::pair<std::int64_t, T>> found;
  for (const StepRef& ref : steps_of(plan)) {
    visit_operation(ref.step->work, [&](const auto& op) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(op)>, T>) found.emplace_back(ref.count, op);
    });
  }
  return found;
}

const Buffer& buffer_of(const Plan& plan, const View& view) {
  return plan.buffers[static_cast<std::size_t>(view.buffer)];
}

TEST(SinksInSteps, AreSplitOverTensorParallelRanks) {
  EXPECT_EQ(weights_of(with_sinks("tp=1")).sinks.numel(), 4);
  const LayerWeights halves = weights_of(with_sinks("tp=2"));
  EXPECT_EQ(halves.sinks.numel(), 2);
  EXPECT_GE(halves.sinks.begin, halves.replicated.back().end());  // each rank has those of its own heads
  EXPECT_EQ(weights_of(small_request("tp=2")).sinks.numel(), 0);
}

// Weights are 16-bit and attention takes f32, so each pass casts the layer's sinks. Their gradient goes to
// the layer's piece, where those of other weights lie.
TEST(SinksInSteps, AreHandedToAttentionAndHaveAGradient) {
  for (const char* layout : {"tp=1", "tp=2,dp_shard=2", "cp=2,strategy=ring", "cp=2,strategy=ulysses",
                             "dp_shard=2,recompute=full"}) {
    for (const DType gradients : {DType::f32, DType::bf16}) {
      StepRequest request = with_sinks(layout);
      request.workload.gradient_dtype = gradients;
      const LayerWeights layer = weights_of(request);
      const std::int64_t heads = 4 / request.layout.tp;
      const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
      std::int64_t gradients_made = 0, casts = 0, arrived = 0;
      std::vector<BufferId> made;
      for (const auto& [count, op] : all_of<AttentionSinkGradient>(plan)) {
        gradients_made += count * op.dsinks.numel(), made.push_back(op.dsinks.buffer);
        EXPECT_EQ(buffer_of(plan, op.sinks).dtype, DType::f32) << layout;
      }
      EXPECT_EQ(gradients_made, 3 * (request.layout.strategy.ulysses_degree > 1 ? heads / 2 : heads))
          << layout;
      const auto is_made = [&](const View& in) {
        return std::find(made.begin(), made.end(), in.buffer) != made.end();
      };
      // Where they lie in the piece of a layer.
      const auto is_of_sinks = [&](const View& view) { return view.numel() == layer.sinks.numel(); };
      for (const auto& [count, op] : all_of<Cast>(plan)) {
        const bool from_weights = buffer_of(plan, op.out).name.ends_with("/sinks");
        casts += from_weights ? count : 0;
        arrived += is_made(op.in) && is_of_sinks(op.out) ? count : 0;
      }
      for (const auto& [count, op] : all_of<Accumulate>(plan)) arrived += is_made(op.in) ? count : 0;
      for (const auto& [count, op] : all_of<Copy>(plan)) arrived += is_made(op.in) ? count : 0;
      const bool again = request.layout.recompute.kind == Recompute::Kind::full;
      EXPECT_EQ(casts, again ? 9 : 6) << layout;  // forward and backward of three layers
      EXPECT_EQ(arrived, 3) << layout;
    }
  }
}

// Weights in f32 are what attention takes.
TEST(SinksInSteps, InF32AreTakenAsTheyLie) {
  StepRequest request = with_sinks("tp=2,dp_shard=2");
  request.workload.dtype = DType::f32;
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
  const std::int64_t begin = weights_of(request).sinks.begin;
  for (const auto& [count, op] : all_of<AttentionSinkGradient>(plan)) {
    EXPECT_TRUE(buffer_of(plan, op.sinks).name.starts_with("unsharded/layers"))
        << buffer_of(plan, op.sinks).name;
    EXPECT_EQ(op.sinks.offset % weights_of(request).numel, begin);
  }
}

// By hand: 24 rows, or half of them, of 4 heads x 8 in f32. What a ring merges has such a sum, with sinks or
// without.
TEST(SinksInSteps, NeedASumInF32) {
  const struct {
    const char* layout;
    std::int64_t rows;
  } cases[] = {{"tp=1", 24},
               {"cp=2,strategy=ulysses", 12},
               {"cp=2,strategy=all_gather", 12},
               {"cp=2,strategy=ring", 0}};
  for (const auto& [layout, rows] : cases) {
    std::int64_t sums = 0;
    for (const Buffer& buffer : step_plan(with_sinks(layout), StepPart::micro_batch, 0, 0).buffers)
      sums += buffer.name == "attention/out sum" ? buffer.bytes() : 0;
    EXPECT_EQ(sums, std::max<std::int64_t>(rows, 12) * 32 * 4) << layout;
  }
}

// They join the output of each row as one part more, with the same in serving.
TEST(SinksInSteps, JoinTheOutputInServing) {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    StepRequest request = with_sinks("tp=2,cp=2,strategy=ring");
    request.workload.phase = phase;
    if (phase == Phase::decode) request.workload.cached = 23, request.workload.new_tokens = 1;
    const Plan with = step_plan(request, parts_of(request).front(), 0, 0);
    request.model.sinks = false;
    const Plan without = step_plan(request, parts_of(request).front(), 0, 0);
    const auto merges = [](const Plan& plan) {
      std::int64_t steps = 0;
      for (const auto& [count, op] : all_of<AttentionMerge>(plan)) steps += count;
      return steps;
    };
    EXPECT_EQ(merges(with), merges(without) + 3) << name(phase);
  }
}

TEST(CapsInSteps, AreThoseOfTheModel) {
  StepRequest request = small_request("cp=2,strategy=ring");
  request.model.softcap = 30;
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 1);
  EXPECT_FALSE(all_of<AttentionForward>(plan).empty());
  for (const auto& [count, op] : all_of<AttentionForward>(plan)) EXPECT_EQ(op.softcap, 30);
  for (const auto& [count, op] : all_of<AttentionBackward>(plan)) EXPECT_EQ(op.softcap, 30);
}

}  // namespace
}  // namespace cp::testing
