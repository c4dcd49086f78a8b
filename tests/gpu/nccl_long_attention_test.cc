// One long case: what the other tests have in few tokens, in as many as models have. Grids of several waves,
// offsets beyond 16 bits and sums over thousands of keys are here alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/session.h"
#include "tests/gpu/gpu_ranks.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using Buffers = std::map<std::string, std::vector<std::byte>>;  // by name

#ifdef CP_GPU_EMULATED
constexpr std::int64_t kTokens = 256;  // 16 Ki would take hours on the host; the test itself is tried so
#else
constexpr std::int64_t kTokens = 16'384;
#endif
constexpr int kLongRanks = 2;
constexpr std::int64_t kHeads = 32, kKvHeads = 8, kHeadDim = kTokens < 1'024 ? 16 : 128;

AttentionRequest long_request() {
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = kTokens;
  problem.q_heads = kHeads, problem.kv_heads = kKvHeads;
  problem.head_dim = problem.v_head_dim = kHeadDim;
  problem.dtype = DType::bf16;
  problem.causal = true;
  request.ranks = {0, 1};
  request.strategy.core = Core::ring;
  request.strategy.balance = parse_balance("head_tail");
  return request;
}

// Random bf16 of any sign: q between 1 and 2, so that few keys have most of the weight and a wrong one shows,
// and the others between 1/4 and 1/2.
std::vector<std::byte> random_values(const Buffer& buffer, std::uint64_t seed) {
  const std::uint32_t exponent = buffer.name == "q" ? 0x3F80 : 0x3E80;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(buffer.numel));
  auto state = static_cast<std::uint32_t>(seed * 7919 + buffer.name.size() * 31 +
                                          static_cast<std::uint32_t>(buffer.name.front()));
  for (std::uint16_t& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<std::uint16_t>((state >> 16 & 0x807F) | exponent);
  }
  std::vector<std::byte> bytes(values.size() * sizeof(std::uint16_t));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Buffers run(NcclDevice& device, const Plan& plan, const Buffers& inputs) {
  PlanSession session(device, plan);
  for (const BufferId id : session.inputs())
    session.upload(id, inputs.at(plan.buffers[static_cast<std::size_t>(id)].name));
  session.run();
  Buffers outputs;
  for (const BufferId id : session.outputs())
    outputs[plan.buffers[static_cast<std::size_t>(id)].name] = session.download(id);
  return outputs;
}

float bf16_at(const std::vector<std::byte>& bytes, std::size_t at) {
  std::uint16_t half = 0;
  std::memcpy(&half, bytes.data() + 2 * at, sizeof half);
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The largest |a - b| / |b| in the norm of 2, of parts that are `part` elements long, so that no wrong rows
// are lost among right ones.
double largest_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                          std::size_t part) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  const std::size_t size = std::min(a.size(), b.size()) / 2;
  for (std::size_t begin = 0; begin < size; begin += part) {
    double difference = 0, norm = 0;
    for (std::size_t i = begin; i < std::min(begin + part, size); ++i) {
      const double x = bf16_at(a, i), y = bf16_at(b, i);
      difference += (x - y) * (x - y);
      norm += y * y;
    }
    const double share = std::sqrt(difference / norm);
    largest = share <= largest ? largest : share;  // a NaN, too
  }
  return largest;
}

// Roundings to bf16, whose unit is 2^-9: of the weights, of each of two partial results, of what they are
// merged to, and of the exact result. In the norm of many rows they are independent, and 2^-6 is eight times
// one of them. Gradients have those of the weights' gradients and of the output in delta besides.
constexpr double kForwardBound = 0x1p-6, kBackwardBound = 0x1p-5;

TEST(NcclLongAttention, FusedIsExact) {
  CP_REQUIRE_GPU();
  const testing::GpuJob job(kLongRanks);
  const AttentionRequest request = long_request();
  const Target& target = testing::target_of_the_gpus();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    if (!uses_fused_attention(request.problem, pass, target))
      GTEST_SKIP() << target.name << " has no fused attention";
  }
  const auto compare = [&](Rank rank) -> std::string {
    NcclDevice device(job.options(rank));
    Buffers inputs;
    std::string wrong;
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      const Plan fused = attention_plan(request, pass, rank, target);
      const Plan exact = attention_plan(request, pass, rank);
      for (const Buffer& buffer : fused.buffers) {
        if (buffer.kind == BufferKind::input && !inputs.contains(buffer.name))
          inputs[buffer.name] = random_values(buffer, static_cast<std::uint64_t>(rank) + 1);
      }
      const Buffers expected = run(device, exact, inputs);
      const Buffers found = run(device, fused, inputs);
      const double bound = pass == AttentionPass::forward ? kForwardBound : kBackwardBound;
      for (const auto& [name, bytes] : expected) {
        if (name == "lse") continue;  // f32, and its mistakes are those of out
        // 16 rows of all heads.
        const double difference =
            largest_difference(found.at(name), bytes, static_cast<std::size_t>(16 * kHeads * kHeadDim));
        std::printf("rank %d, %s: differs by %.2g (%.2g)\n", rank, name.c_str(), difference, bound);
        if (!(difference <= bound)) wrong += str(name, " differs by ", difference, "; ");
        inputs[name] = bytes;
      }
      if (const auto lse = expected.find("lse"); lse != expected.end()) inputs["lse"] = lse->second;
    }
    return wrong;
  };
  EXPECT_EQ(testing::run_gpu_ranks(kLongRanks, compare), testing::kNothing2);
}

}  // namespace
}  // namespace cp
