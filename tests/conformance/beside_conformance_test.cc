// Plans of a model in two lanes: while attention runs over a ring in lane 0, the shards of a parameter are
// gathered in lane 1 (forward), and its gradient is scattered and added up there (backward).
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/strategy.h"
#include "shared/fully_shard/hsdp_param.h"
#include "shared/plan/prepared_plan.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/attention_tolerance.h"
#include "tests/conformance/device_suite.h"
#include "tests/support/shard_data.h"

namespace cp::conformance {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kRounds = 3;

BufferId buffer_of(const Plan& plan, std::string_view name) {
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (plan.buffers[i].name == name) return static_cast<BufferId>(i);
  }
  ADD_FAILURE() << "no buffer " << name;
  return -1;
}

// For each element that the rank holds its number in the whole tensor times `factor`, plus `more`. These are
// small integers, so that all sums are exact.
Bytes numbered(const Layout& layout, Rank rank, double factor, double more = 0) {
  Values values;
  for (const std::int64_t element : testing::element_numbers(layout, rank))
    values.push_back(factor * static_cast<double>(element) + more);
  return to_bytes(DType::f32, values);
}

// One pass of attention that is kept, with the rank's buffers on the host.
class Pass {
 public:
  Pass(Device& device, const sim::AttentionShards& shards, const AttentionRequest& request,
       AttentionPass pass)
      : shards_(shards),
        pass_(pass),
        plan_(attention_plan(request, pass, device.rank(), device.target())),
        prepared_(device, plan_) {}

  void run(sim::RankBuffers& memory) {
    shards_.bind(pass_, plan_, memory);  // makes the buffers that are missing
    for_each_buffer(BufferKind::output,
                    [&](BufferId id, const Buffer& buffer) { prepared_.upload(id, memory.at(buffer.name)); });
    prepared_.run();
  }
  // Waits for the run. Returns what differs from one device.
  std::string finish(sim::RankBuffers& memory, const sim::AttentionTolerances& tolerances) {
    for_each_buffer(BufferKind::input, [&](BufferId id, const Buffer& buffer) {
      prepared_.download(id, memory.at(buffer.name));
    });
    std::string wrong;
    for (const auto& [tensor, error] : shards_.compare(pass_, plan_, memory, tolerances))
      wrong += error.finding;
    return wrong;
  }

 private:
  // All buffers of the caller's but those of one kind.
  template <class F>
  void for_each_buffer(BufferKind without, const F& f) {
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const Buffer& buffer = plan_.buffers[i];
      if (buffer.kind != BufferKind::temporary && buffer.kind != without) f(static_cast<BufferId>(i), buffer);
    }
  }

  const sim::AttentionShards& shards_;
  const AttentionPass pass_;
  const Plan plan_;
  PreparedPlan prepared_;
};

// A plan in lane 1 with one input and one output.
class Move {
 public:
  Move(Device& device, Plan plan, std::string_view in, std::string_view out)
      : plan_(std::move(plan)),
        in_(buffer_of(plan_, in)),
        out_(buffer_of(plan_, out)),
        prepared_(device, plan_, {}, /*lane=*/1) {}

  void upload(const Bytes& bytes) { prepared_.upload(in_, bytes); }
  void run() { prepared_.run(); }
  Bytes finish() {
    Bytes bytes(static_cast<std::size_t>(plan_.buffers[static_cast<std::size_t>(out_)].bytes()));
    prepared_.download(out_, bytes);
    return bytes;
  }

 private:
  const Plan plan_;
  const BufferId in_, out_;
  PreparedPlan prepared_;
};

TEST_P(DeviceConformance, AParameterIsGatheredAndItsGradientReducedWhileAttentionRuns) {
  if (!has("exchange")) GTEST_SKIP() << "the device has no exchange";
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 61;
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 16;
  problem.causal = true;
  const AttentionRequest request{
      problem, {0, 1, 2, 3}, named_strategy({"ring", {}, {}}, problem, kWorldSize)};
  const sim::AttentionTestData data(problem, 7);
  const sim::AttentionShards shards(data, request);
  const sim::AttentionTolerances tolerances =
      sim::attention_tolerances(data, request, /*backward=*/true, GetParam().target);
  HsdpOptions options;
  options.shard = {"dp_shard"}, options.replicate = {"dp_replicate"};
  options.reduce = ReduceOp::sum;
  // Seven rows over two ranks: their shards differ in size.
  const HsdpParam param(replicated_layout(Mesh::parse("dp_replicate=2,dp_shard=2"), {7, 5}, DType::f32),
                        options);
  world().run([&](Rank rank, Device& device) {
    Pass forward(device, shards, request, AttentionPass::forward),
        backward(device, shards, request, AttentionPass::backward);
    Move gather(device, param.unshard_plan(rank, GetParam().target), "shard", "parameter"),
        reduce(device, param.reduce_plan(rank, {}, GetParam().target), "gradient", "reduced");
    sim::RankBuffers memory;
    for (int round = 1; round <= kRounds; ++round) {
      gather.upload(numbered(param.sharded(), rank, round));
      forward.run(memory);
      gather.run();
      EXPECT_EQ(gather.finish(), numbered(param.unsharded(), rank, round)) << "round " << round;
      EXPECT_EQ(forward.finish(memory, tolerances), "") << "round " << round;

      // The gradients of ranks 0 to 3 are one more each: their sum is four times the first, and 6 more.
      reduce.upload(numbered(param.gradient(), rank, round, rank));
      backward.run(memory);
      reduce.run();
      EXPECT_EQ(reduce.finish(), numbered(param.reduced(), rank, 4 * round, 6)) << "round " << round;
      EXPECT_EQ(backward.finish(memory, tolerances), "") << "round " << round;
    }
  });
}

}  // namespace
}  // namespace cp::conformance
