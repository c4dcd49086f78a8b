// Whole steps on the timeline: one rank's plan of a micro-batch replayed, and the schedule of a pipeline.
//
// step_plan writes the plan; replay_rank replays it (items: steps replayed one by one, if none were skipped);
// full: with spans, so that no iteration is skipped.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "shared/transformer/pipeline.h"
#include "shared/transformer/step_plan.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/planner/models/read_model.h"

namespace cp::sim {
namespace {

struct Case {
  const char* name;
  const char* model;
  const char* layout;
  int nodes;
  std::int64_t seq_len;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"8B, 16 GPUs", "llama-3.1-8b", "dp_shard=2,cp=8,strategy=ring,balance=head_tail,recompute=selective",
       2, 131072},
      {"70B, 128 GPUs", "llama-3.1-70b", "dp_shard=4,cp=4,tp=8,strategy=ulysses_ring,recompute=full", 16,
       131072},
      {"405B, 1024 GPUs", "llama-3.1-405b",
       "dp_shard=8,cp=16,tp=8,strategy=ring,balance=head_tail,recompute=full", 128, 131072},
      {"405B, 16384 GPUs", "llama-3.1-405b", "dp_shard=1024,cp=2,tp=8,strategy=all_gather,recompute=full",
       2048, 8192},
  };
  return all;
}

StepRequest request_of(const Case& c) {
  StepRequest request;
  request.model = find_model(c.model).model;
  request.layout = parse_parallel_layout(c.layout);
  request.workload.seq_len = c.seq_len;
  request.workload.global_batch = request.layout.dp();
  return request;
}

void step_plans(benchmark::State& state, const Case& c) {
  const StepRequest request = request_of(c);
  MixerPlanCache cache;
  for (auto _ : state) benchmark::DoNotOptimize(step_plan(request, StepPart::micro_batch, 0, 0, &cache));
}

void replay_ranks(benchmark::State& state, const Case& c, bool full) {
  const StepRequest request = request_of(c);
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
  const Cluster cluster = find_cluster("dgx-h100", c.nodes);
  StepClock clock;
  for (auto _ : state) clock = replay_rank(plan, cluster, {}, {.keep_spans = full});
  std::int64_t executions = 0, steps = 0;
  for (const StepRef& ref : steps_of(plan)) executions += ref.count, ++steps;
  state.SetItemsProcessed(state.iterations() * executions);
  state.counters["steps"] = static_cast<double>(steps);
  state.counters["simulated_ms"] = clock.time_ns * 1e-6;
}

void run_pipelines(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::vector<StageTimes> stages(static_cast<std::size_t>(ranks * state.range(1)),
                                       {1e6, 2e6, 1e4, 1e4});
  for (auto _ : state) benchmark::DoNotOptimize(run_pipeline(stages, ranks, state.range(2)));
  state.SetItemsProcessed(state.iterations() * ranks * state.range(1) * state.range(2) * 2);
}
BENCHMARK(run_pipelines)
    ->ArgNames({"ranks", "stages each", "micro-batches"})
    ->Args({4, 1, 16})
    ->Args({16, 1, 128})
    ->Args({16, 4, 256});

[[maybe_unused]] const bool registered = [] {
  for (const Case& c : cases()) {
    benchmark::RegisterBenchmark((std::string("step_plan/") + c.name).c_str(), step_plans, c)
        ->Unit(benchmark::kMicrosecond);
    for (const bool full : {false, true}) {
      benchmark::RegisterBenchmark((std::string("replay_rank/") + c.name + (full ? "/full" : "")).c_str(),
                                   replay_ranks, c, full)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace cp::sim
