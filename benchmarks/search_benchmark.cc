// The search of `cpsim plan`: bounds and whole steps on one core, and whole searches on all.
//
// bounds: layouts a second, of those that are legal. whole_steps: plans, replay and, with stages, the
// schedule; layouts a second as a search asks for them, attention's plans kept between layouts. search: the
// counts of a search that ends by itself.
#include <algorithm>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "shared/transformer/least_memory.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/planner/models/read_model.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/living_cache.h"
#include "sim/planner/search/search.h"

namespace cp::sim {
namespace {

PlanQuestion question_of(const char* model, int nodes, std::int64_t seq_len, std::int64_t batch) {
  PlanQuestion question;
  question.model = find_model(model).model;
  question.cluster = find_cluster("dgx-h100", nodes);
  question.software = find_software("cprun");
  question.workload.seq_len = seq_len, question.workload.global_batch = batch;
  return question;
}
PlanQuestion small() { return question_of("llama-3.1-8b", 2, 131072, 16); }
PlanQuestion large() { return question_of("llama-3.1-405b", 2048, 131072, 2048); }

// Some thousand legal layouts of all kinds: a member of each of evenly chosen families.
std::vector<ParallelLayout> legal_layouts(const PlanQuestion& question) {
  constexpr std::size_t kFamilies = 10000;
  const LayoutSpace space(question);
  std::vector<ParallelLayout> chosen;
  const std::vector<ParallelLayout> families = space.families();
  const std::size_t stride = std::max<std::size_t>(1, families.size() / kFamilies);
  for (std::size_t i = 0; i < families.size(); i += stride) {
    if (refuse(question.model, question.workload, space.leanest_member(families[i]))) continue;
    const std::vector<ParallelLayout> members = space.members(families[i]);
    chosen.push_back(members[i / stride % members.size()]);
  }
  return chosen;
}

void bounds(benchmark::State& state) {
  const PlanQuestion question = large();
  const StepBound bound(question);
  const std::vector<ParallelLayout> layouts = legal_layouts(question);
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(bound.ns(layouts[next]));
    next = (next + 1) % layouts.size();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(bounds)->Unit(benchmark::kMicrosecond);

void memories(benchmark::State& state) {
  const PlanQuestion question = large();
  const MemoryRules rules = memory_rules(question);
  LivingCache living;
  const LeastMemory least(
      question.model, question.workload, rules,
      [&](const StageLayers& layers, const Recompute& recompute) { return living.get(layers, recompute); });
  const std::vector<ParallelLayout> layouts = legal_layouts(question);
  std::size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(least.of(layouts[next]));
    next = (next + 1) % layouts.size();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(memories)->Unit(benchmark::kMicrosecond);

// All of these once in each iteration, by an evaluator that knows none of them.
void whole_steps(benchmark::State& state, const PlanQuestion& question,
                 const std::vector<std::string>& texts) {
  std::vector<ParallelLayout> layouts;
  for (const std::string& text : texts) {
    const ParallelLayout layout = parse_parallel_layout(text, question.cluster.num_gpus());
    if (const auto refusal = refuse(question.model, question.workload, layout)) {
      state.SkipWithError(refusal->reason.c_str());
      return;
    }
    for (const char* recompute : {"none", "selective", "full", "every:2"}) {
      layouts.push_back(layout);
      layouts.back().recompute = parse_recompute(recompute);
    }
  }
  for (auto _ : state) {
    Evaluator evaluator(question);
    for (const ParallelLayout& layout : layouts) benchmark::DoNotOptimize(evaluator.evaluate(layout));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(layouts.size()));
}

const std::vector<std::string>& small_layouts() {
  static const std::vector<std::string> all = {
      "cp=16,strategy=ring,balance=head_tail", "tp=2,cp=8,strategy=ulysses_ring,ulysses_degree=2",
      "tp=4,cp=4,strategy=all_gather", "tp=2,cp=4,pp=2,strategy=ring,balance=head_tail", "tp=8,dp_shard=2"};
  return all;
}
const std::vector<std::string>& large_layouts() {
  static const std::vector<std::string> all = {
      "tp=8,cp=16,dp_shard=128,strategy=ring,balance=head_tail",
      "tp=8,cp=16,dp_shard=8,pp=16,strategy=all_gather",
      "tp=8,cp=64,dp_shard=32,strategy=ulysses_ring,ulysses_degree=8",
      "tp=8,cp=8,dp_shard=16,pp=16,virtual_stages=2,strategy=ring,balance=head_tail",
      "tp=16,cp=4,dp_shard=32,pp=8,strategy=ulysses"};
  return all;
}

void searches(benchmark::State& state, const PlanQuestion& question) {
  SearchCounts counts;
  for (auto _ : state) counts = search_layouts(question).counts;
  state.counters["enumerated"] = static_cast<double>(counts.enumerated);
  state.counters["out_of_memory"] = static_cast<double>(counts.out_of_memory);
  state.counters["pruned"] = static_cast<double>(counts.pruned);
  state.counters["replayed"] = static_cast<double>(counts.replayed);
}

[[maybe_unused]] const bool registered = [] {
  benchmark::RegisterBenchmark("whole_steps/8B, 16 GPUs", whole_steps, small(), small_layouts())
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("whole_steps/405B, 16384 GPUs", whole_steps, large(), large_layouts())
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("search/8B, 16 GPUs", searches, small())
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  benchmark::RegisterBenchmark("search/405B, 16384 GPUs", searches, large())
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime()
      ->Iterations(1);
  return true;
}();

}  // namespace
}  // namespace cp::sim
