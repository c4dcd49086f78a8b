// Attention plans without data: one rank's forward and backward plan among 1,024 ranks, of every strategy.
// Nothing is cached between the iterations. Beside each: the steps that were written, so that a rate can be
// read off.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "shared/context_parallel/attention_plan.h"

namespace cp {
namespace {

constexpr int kRanks = 1024;

AttentionRequest request(const std::string& name, const std::string& balance, std::int64_t seq_len) {
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = seq_len;
  problem.q_heads = name == "ulysses" ? kRanks : 64;  // as many heads as ranks, or it is not legal
  problem.kv_heads = 8;
  problem.head_dim = problem.v_head_dim = 128;
  problem.dtype = DType::bf16;
  problem.causal = true;
  request.strategy = named_strategy({name, {}, {}}, problem, kRanks);
  request.strategy.balance = parse_balance(balance);
  request.ranks.resize(kRanks);
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  return request;
}

void plan_one_rank(benchmark::State& state, const AttentionRequest& request) {
  std::size_t steps = 0;
  for (auto _ : state) {
    const Plan forward = attention_plan(request, AttentionPass::forward, kRanks / 2 - 1);
    const Plan backward = attention_plan(request, AttentionPass::backward, kRanks / 2 - 1);
    steps = steps_of(forward).size() + steps_of(backward).size();
    benchmark::DoNotOptimize(steps);
  }
  state.counters["steps"] = static_cast<double>(steps);
}

void register_all() {
  constexpr std::int64_t kEven = 1 << 20, kOdd = kEven - 3;
  for (const std::string& name : strategy_names()) {
    for (const char* balance : {"contiguous", "head_tail", "striped", "cost:256"}) {
      for (const std::int64_t seq_len : {kEven, kOdd}) {
        const std::string label = name + "/" + balance + (seq_len == kEven ? "/even" : "/odd");
        benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
          plan_one_rank(state, request(name, balance, seq_len));
        })->Unit(benchmark::kMillisecond);
      }
    }
  }
}

const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace cp
