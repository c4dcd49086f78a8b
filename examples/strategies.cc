// Every strategy of attention inside one's own program. Scores are equal and each value is its key's
// position, so that under a causal mask the result of row p is p/2, whichever rank the strategy gives that
// row to.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "shared/context_parallel/attention.h"
#include "shared/context_parallel/sharding.h"
#include "sim/fabric/fabric.h"

int main() {
  cp::AttentionProblem problem;  // [batch, seq, heads, head_dim]: one number for each row
  problem.q_len = problem.kv_len = 101;
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 1;
  problem.causal = true;
  const std::vector<cp::Rank> ranks = {0, 1, 2, 3};
  cp::sim::Fabric fabric(4);
  for (const std::string& name : cp::strategy_names()) {
    const cp::Strategy strategy = cp::named_strategy({name, {}, {}}, problem, 4);
    const cp::AttentionSharding sharding(problem, 4, strategy);
    std::vector<float> worst(4);
    fabric.run([&](cp::Rank rank, cp::Device& device) {
      cp::PlanCache plans;
      cp::ContextParallelAttention attention(device, ranks, strategy, plans);
      std::map<std::string, std::vector<float>> memory;
      cp::NamedBuffers buffers;
      for (const auto& [buffer, bytes] : attention.buffer_bytes(problem, cp::AttentionPass::forward)) {
        memory[buffer].resize(static_cast<std::size_t>(bytes) / sizeof(float), 1);
        buffers[buffer] = memory[buffer].data();
      }
      const cp::IndexSet keys = sharding.home_kv(rank).rows, queries = sharding.home_q(rank).rows;
      for (std::size_t i = 0; i < memory["v"].size(); ++i)
        memory["v"][i] = static_cast<float>(cp::to_global(keys, static_cast<std::int64_t>(i) / 2));
      attention.forward(problem, buffers);
      for (std::size_t i = 0; i < memory["out"].size(); ++i) {
        const auto position = static_cast<float>(cp::to_global(queries, static_cast<std::int64_t>(i) / 4));
        float& most = worst[static_cast<std::size_t>(rank)];
        most = std::max(most, std::abs(memory["out"][i] - position / 2));
      }
    });
    const float most = *std::max_element(worst.begin(), worst.end());
    std::printf("%s: %s\n", to_string(strategy, 4).c_str(), most < 1e-4F ? "right" : "WRONG");
  }
}
