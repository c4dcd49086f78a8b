// ContextParallelAttention on the caller's buffers, against one device.
#include "shared/context_parallel/attention.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/attention_tolerance.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

AttentionProblem grouped_problem(std::int64_t length) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = length;
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 8;
  problem.causal = true;
  return problem;
}

const std::vector<Rank> kRanks{0, 1, 2};

Strategy strategy_of(const char* name) { return named_strategy({name, {}, {}}, grouped_problem(1), 3); }

// Both passes on all ranks, with one cache for each rank; what is wrong, in words.
std::vector<std::string> run(sim::Fabric& fabric, const char* strategy, std::int64_t length,
                             std::vector<PlanCache>& caches) {
  const AttentionRequest request{grouped_problem(length), kRanks, strategy_of(strategy)};
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

// Two ranks of four rows each, by Ulysses: buffers are [seq, batch, heads, dim], lse is that of the rank's
// own rows with all heads, and dq is all that the backward pass makes. Written out here, and nowhere derived
// from what plans say of buffers.
TEST(ContextParallelAttention, TakesMegatronsOrderAndGivesLseAtHomeAndTheGradientThatIsAskedFor) {
  AttentionProblem problem = grouped_problem(8);
  problem.batch = 2, problem.format = TensorFormat::sbhd;
  const std::vector<Rank> ranks{0, 1};
  const AttentionOptions options{{.dq = true, .dk = false, .dv = false}, LsePlace::home};
  const AttentionRequest request{problem, ranks, named_strategy({"ulysses", {}, {}}, problem, 2), true,
                                 options};
  const sim::AttentionTestData data(problem, 7);
  const sim::AttentionTolerances tolerances = sim::attention_tolerances(data, request, true);
  constexpr std::size_t kRows = 4, kBatch = 2, kDim = 8, kLength = 8;
  sim::Fabric fabric(2);
  fabric.run([&](Rank rank, Device& device) {
    PlanCache plans;
    ContextParallelAttention attention(device, ranks, request.strategy, plans, options);
    std::map<std::string, std::vector<float>> memory;
    const auto first_row = static_cast<std::size_t>(rank) * kRows;
    // Calls visit(place in the rank's buffer, row of the global tensor, place in that).
    const auto for_each = [&](std::size_t heads, const auto& visit) {
      for (std::size_t s = 0; s < kRows; ++s) {
        for (std::size_t b = 0; b < kBatch; ++b) {
          for (std::size_t h = 0; h < heads; ++h) {
            for (std::size_t d = 0; d < kDim; ++d) {
              const std::size_t row = (b * heads + h) * kLength + first_row + s;
              visit(((s * kBatch + b) * heads + h) * kDim + d, row, row * kDim + d);
            }
          }
        }
      }
    };
    const auto put = [&](const char* name, std::size_t heads, const std::vector<double>& values) {
      std::vector<float>& buffer = memory[name];
      buffer.resize(kRows * kBatch * heads * kDim);
      for_each(heads, [&](std::size_t at, std::size_t, std::size_t from) {
        buffer[at] = static_cast<float>(values[from]);
      });
    };
    put("q", 4, data.q()), put("k", 2, data.k()), put("v", 2, data.v()), put("dout", 4, data.dout());
    const auto run = [&](AttentionPass pass) {
      NamedBuffers buffers;
      for (const auto& [name, bytes] : attention.buffer_bytes(problem, pass)) {
        memory[name].resize(static_cast<std::size_t>(bytes) / sizeof(float));
        buffers[name] = memory[name].data();
      }
      pass == AttentionPass::forward ? attention.forward(problem, buffers)
                                     : attention.backward(problem, buffers);
    };
    run(AttentionPass::forward), run(AttentionPass::backward);
    const auto expect = [&](const char* name, const std::vector<double>& expected,
                            const sim::TensorTolerance& tolerance) {
      ASSERT_EQ(memory.at(name).size(), kRows * kBatch * 4 * kDim) << name;
      for_each(4, [&](std::size_t at, std::size_t row, std::size_t from) {
        EXPECT_TRUE(tolerance.holds(row, expected[from], memory.at(name)[at])) << name << " " << at;
      });
    };
    expect("out", data.out(), tolerances.out), expect("dq", data.dq(), tolerances.dq);
    ASSERT_EQ(memory.at("lse").size(), kBatch * 4 * kRows);
    for (std::size_t lane = 0; lane < kBatch * 4; ++lane) {
      for (std::size_t s = 0; s < kRows; ++s) {
        const std::size_t row = lane * kLength + first_row + s;
        EXPECT_TRUE(tolerances.lse.holds(row, data.lse()[row], memory.at("lse")[lane * kRows + s])) << row;
      }
    }
    EXPECT_FALSE(memory.contains("dk") || memory.contains("dv"));
  });
}

// The steps of a pass's plan that a library computes, on two ranks whose devices have the target.
std::vector<std::size_t> fused_steps(const Target& target) {
  AttentionProblem problem = grouped_problem(256);
  problem.dtype = DType::bf16, problem.head_dim = problem.v_head_dim = 64;
  sim::Fabric fabric(2, {.target = target});
  std::vector<std::size_t> fused(2);
  fabric.run([&](Rank rank, Device& device) {
    PlanCache plans(4, [&](const Plan& plan) {
      EXPECT_EQ(plan.target, target);
      for (const StepRef& ref : steps_of(plan)) {
        const auto* kernel = std::get_if<Kernel>(&ref.step->work);
        const auto* attention = kernel == nullptr ? nullptr : std::get_if<AttentionForward>(kernel);
        if (attention != nullptr && attention->engine == AttentionEngine::fused)
          ++fused[static_cast<std::size_t>(rank)];
      }
    });
    ContextParallelAttention attention(device, {0, 1}, named_strategy({"ring", {}, {}}, problem, 2), plans);
    EXPECT_FALSE(attention.buffer_bytes(problem, AttentionPass::forward).empty());
    EXPECT_EQ(plans.size(), 1U);
  });
  return fused;
}

TEST(ContextParallelAttention, PlansAreMadeForTheDevicesTarget) {
  EXPECT_THAT(fused_steps(gpu_target("sm90")), ::testing::Each(::testing::Gt(0U)));
  EXPECT_THAT(fused_steps(host_target()), ::testing::Each(0U));
}

TEST(ContextParallelAttention, NamesTheBuffersThatItTakes) {
  sim::Fabric fabric(1);
  fabric.run([&](Rank, Device& device) {
    PlanCache plans;
    ContextParallelAttention attention(device, {0}, Strategy{}, plans);
    std::vector<float> memory(4096);
    NamedBuffers buffers{
        {"q", memory.data()}, {"k", memory.data()}, {"v", memory.data()}, {"out", memory.data()}};
    EXPECT_THAT(testing::message_of([&] { attention.forward(grouped_problem(4), buffers); }),
                AllOf(HasSubstr("lacks the buffer lse"), HasSubstr("q (512 bytes)")));
    buffers["lse"] = memory.data(), buffers["dq"] = memory.data();
    EXPECT_THAT(testing::message_of([&] { attention.forward(grouped_problem(4), buffers); }),
                HasSubstr("has no use for the buffer dq"));
  });
}

// Names are found once; the runs get bindings.
TEST(PreparedAttention, RunsOnBuffersThatWereBoundByName) {
  sim::Fabric fabric(1);
  fabric.run([&](Rank, Device& device) {
    PlanCache plans;
    ContextParallelAttention attention(device, {0}, Strategy{}, plans);
    const AttentionProblem problem = grouped_problem(4);
    std::map<std::string, std::vector<float>> memory;
    NamedBuffers buffers;
    for (const auto& [name, bytes] : attention.buffer_bytes(problem, AttentionPass::forward)) {
      memory[name].assign(static_cast<std::size_t>(bytes) / sizeof(float), 2);
      buffers[name] = memory[name].data();
    }
    PreparedAttention forward(attention, problem, AttentionPass::forward, buffers);
    const Bindings bound = forward.bind(buffers);
    EXPECT_EQ(bound.size(), buffers.size());
    for (const Binding& binding : bound)
      EXPECT_EQ(binding.data,
                buffers.at(forward.plan().buffers[static_cast<std::size_t>(binding.buffer)].name));
    std::vector<float> other(memory["out"].size());
    NamedBuffers others = buffers;
    others["out"] = other.data();
    forward.run(bound).wait();
    EXPECT_THAT(memory["out"], ::testing::Each(::testing::FloatNear(2, 1e-5F)));
    memory["out"].assign(memory["out"].size(), 0);
    forward.run(forward.bind(others)).wait();
    EXPECT_THAT(other, ::testing::Each(::testing::FloatNear(2, 1e-5F)));
    EXPECT_THAT(memory["out"], ::testing::Each(0));
    forward.run(buffers).wait();  // by name, in one call
    EXPECT_THAT(memory["out"], ::testing::Each(::testing::FloatNear(2, 1e-5F)));
    others.erase("lse");
    EXPECT_THAT(testing::message_of([&] { static_cast<void>(forward.bind(others)); }),
                HasSubstr("lacks the buffer lse"));
  });
}

}  // namespace
}  // namespace cp
