// ContextParallelAttention on the caller's buffers, against one device.
#include "shared/context_parallel/attention.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/fabric/fabric.h"
#include "sim/run/attention_shards.h"
#include "sim/run/attention_tolerance.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

AttentionProblem problem_of(std::int64_t length) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = length;
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 8;
  problem.causal = true;
  return problem;
}

const std::vector<Rank> kRanks{0, 1, 2};

Strategy strategy_of(const char* name) { return named_strategy({name, {}, {}}, problem_of(1), 3); }

// Both passes on all ranks, with one cache for each rank; what is wrong, in words.
std::vector<std::string> run(sim::Fabric& fabric, const char* strategy, std::int64_t length,
                             std::vector<PlanCache>& caches) {
  const AttentionRequest request{problem_of(length), kRanks, strategy_of(strategy)};
  const sim::AttentionTestData data(request.problem, 7);
  const sim::AttentionShards shards(data, request);
  const sim::AttentionTolerances tolerances = sim::attention_tolerances(data, request, true);
  std::vector<std::string> findings(3);
  fabric.run([&](Rank rank, Device& device) {
    ContextParallelAttention attention(device, kRanks, request.strategy,
                                       caches[static_cast<std::size_t>(rank)]);
    sim::RankBuffers memory;
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      const Plan plan = attention_plan(request, pass, rank);
      shards.bind(pass, plan, memory);
      NamedBuffers buffers;
      for (const auto& [name, bytes] : attention.buffer_bytes(request.problem, pass)) {
        EXPECT_EQ(memory.at(name).size(), static_cast<std::size_t>(bytes)) << name;
        buffers[name] = memory.at(name).data();
      }
      pass == AttentionPass::forward ? attention.forward(request.problem, buffers)
                                     : attention.backward(request.problem, buffers);
      for (const auto& [tensor, error] : shards.compare(pass, plan, memory, tolerances))
        findings[static_cast<std::size_t>(rank)] += error.finding;
    }
  });
  return findings;
}

TEST(ContextParallelAttention, VaryingLengthsEqualOneDeviceAndKeepTheirPlans) {
  for (const char* strategy : {"ring", "ulysses_all_gather", "pass_q"}) {
    sim::Fabric fabric(3);
    std::vector<int> made(3, 0);
    std::vector<PlanCache> caches;
    for (int& count : made) caches.emplace_back(16, [&count](const Plan&) { ++count; });
    for (const std::int64_t length : {31, 64, 5, 31}) {
      for (const std::string& finding : run(fabric, strategy, length, caches))
        EXPECT_EQ(finding, "") << strategy;
    }
    EXPECT_EQ(made, std::vector<int>(3, 6)) << strategy;  // two passes of three lengths
  }
}

TEST(ContextParallelAttention, NamesTheBuffersThatItTakes) {
  sim::Fabric fabric(1);
  fabric.run([&](Rank, Device& device) {
    PlanCache plans;
    ContextParallelAttention attention(device, {0}, Strategy{}, plans);
    std::vector<float> memory(4096);
    NamedBuffers buffers{
        {"q", memory.data()}, {"k", memory.data()}, {"v", memory.data()}, {"out", memory.data()}};
    EXPECT_THAT(testing::message_of([&] { attention.forward(problem_of(4), buffers); }),
                AllOf(HasSubstr("lacks the buffer lse"), HasSubstr("q (512 bytes)")));
    buffers["lse"] = memory.data(), buffers["dq"] = memory.data();
    EXPECT_THAT(testing::message_of([&] { attention.forward(problem_of(4), buffers); }),
                HasSubstr("has no use for the buffer dq"));
  });
}

}  // namespace
}  // namespace cp
