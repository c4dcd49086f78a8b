// Laws of steps: texts of layouts, counts of pairs, gathered parameters, pipelines, and bounds where
// operations alone take time. Each is a plain statement of its rule, which shares no formula with what it
// judges.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "shared/context_parallel/pair_counts.h"
#include "shared/context_parallel/sharding.h"
#include "shared/transformer/sizes.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/fuzz/laws.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/evaluate.h"

namespace cp::sim {
namespace {

// Times are sums of at most a few thousand doubles, added up in two orders: below 1e4 * 2^-53 each way.
constexpr double kSumRounding = 1e-11;

// ---- texts ----

}  // namespace

std::vector<ParallelLayout> neighbours(const ParallelLayout& layout) {
  std::vector<ParallelLayout> list;
  const auto with = [&](const auto& change) {
    ParallelLayout next = layout;
    change(next);
    list.push_back(next);
  };
  for (const int n : {1, 2, 3, 4, 7, 16}) {
    with([&](ParallelLayout& next) { next.dp_replicate = n; });
    with([&](ParallelLayout& next) { next.dp_shard = n; });
    with([&](ParallelLayout& next) { next.tp = n; });
    with([&](ParallelLayout& next) { next.pp = n; });
    with([&](ParallelLayout& next) { next.ep = n; });
    with([&](ParallelLayout& next) { next.virtual_stages = n; });
    with([&](ParallelLayout& next) { next.micro_batch = n; });
    with([&](ParallelLayout& next) { next.loss_chunks = n; });
    with([&](ParallelLayout& next) { next.mlp_chunks = n; });
    if (n < 4) with([&](ParallelLayout& next) { next.zero = n; });
    with([&](ParallelLayout& next) { next.reshard = n; });
    with([&](ParallelLayout& next) { next.prefetch = n; });
    with([&](ParallelLayout& next) { next.bucket = n; });
    with([&](ParallelLayout& next) { next.threshold = 100 * n; });
    if (n > 1) with([&](ParallelLayout& next) { next.recompute = {Recompute::Kind::every, n}; });
  }
  for (const auto kind : {Recompute::Kind::none, Recompute::Kind::selective, Recompute::Kind::full})
    with([&](ParallelLayout& next) { next.recompute = {kind, 1}; });
  for (const bool yes : {false, true}) {
    with([&](ParallelLayout& next) { next.sequence_parallel = yes; });
    with([&](ParallelLayout& next) { next.sync_once = yes; });
    with([&](ParallelLayout& next) { next.host_activations = yes; });
  }
  for (const auto group : {ShardingGroup::dp_shard, ShardingGroup::dp_shard_cp})
    with([&](ParallelLayout& next) { next.sharding = group; });
  for (const AxisOrder order : axis_orders()) with([&](ParallelLayout& next) { next.order = order; });
  if (layout.cp == 1) return list;  // nothing is said of the strategy
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64, problem.q_heads = layout.cp;
  const std::vector<Strategy> known = standard_strategies(problem, layout.cp);
  for (const Strategy& strategy : known) {
    // Where heads alone are split, no other core has anything to do: texts name the one of the first.
    if (strategy.ulysses_degree == layout.cp && strategy.core != known.front().core) continue;
    with([&](ParallelLayout& next) { next.strategy = strategy; });
  }
  with([&](ParallelLayout& next) { next.keys = Strategy::Keys::latent; });
  for (const char* balance : {"contiguous", "head_tail"}) {
    with([&](ParallelLayout& next) { next.window_balance = parse_balance(balance); });
    with([&](ParallelLayout& next) { next.scan_balance = parse_balance(balance); });
  }
  for (const char* balance : {"contiguous", "head_tail", "striped:1", "striped:4", "cost:2"})
    with([&](ParallelLayout& next) { next.strategy.balance = parse_balance(balance); });
  return list;
}

namespace {

// ---- pairs ----

bool is_allowed(const AttentionProblem& problem, std::int64_t query, std::int64_t key) {
  const std::int64_t position = query + problem.offset();
  const auto document = [&](std::int64_t at) {
    return std::upper_bound(problem.cu_seqlens.begin(), problem.cu_seqlens.end(), at);
  };
  return key <= position && (!problem.window || key > position - *problem.window) &&
         (!problem.chunk || key / *problem.chunk == position / *problem.chunk) &&
         document(key) == document(position);
}

}  // namespace

// Of the mask alone: each of the rows with all of the others.
std::int64_t pairs_one_by_one(const AttentionProblem& problem, const IndexSet& rows, bool by_key) {
  std::int64_t pairs = 0;
  for (const Run& run : rows) {
    for (std::int64_t piece = 0; piece < run.count; ++piece) {
      for (std::int64_t i = 0; i < run.run; ++i) {
        const std::int64_t row = run.begin + piece * run.stride + i;
        for (std::int64_t other = 0; other < (by_key ? problem.q_len : problem.kv_len); ++other)
          pairs += (by_key ? is_allowed(problem, other, row) : is_allowed(problem, row, other)) ? 1 : 0;
      }
    }
  }
  return pairs;
}

namespace {

void count_pairs(const AttentionProblem& problem, const IndexSet& rows, bool by_key, const Trial& trial) {
  const std::int64_t counted = pairs_one_by_one(problem, rows, by_key);
  const std::int64_t closed = by_key ? pairs_of_keys(problem, rows) : pairs_of_queries(problem, rows);
  trial.require(closed == counted, "pairs", closed, " pairs of the ", by_key ? "keys " : "queries ",
                to_string(rows), " in closed form, ", counted, " one by one, of ", to_string(problem));
}

// ---- machines ----

// Of the cluster's preset, with as many nodes as the layout takes.
PlanQuestion question_of(const StepRequest& request, const std::string& cluster) {
  PlanQuestion question;
  question.model = request.model;
  question.workload = request.workload;
  const std::string name = cluster.empty() ? "dgx-h100" : cluster;
  const int gpus = find_cluster(name, 1).node.gpus;
  question.cluster = find_cluster(name, (request.layout.world() + gpus - 1) / gpus);
  question.software = find_software("cprun");
  return question;
}

// The same cluster with GPUs that make a million operations of products and attention in a second: all else
// they do in next to no time.
PlanQuestion slowed(PlanQuestion question) {
  // In 10^12 operations a second. Chosen: so slow that every transfer and launch is next to nothing.
  constexpr double kTflops = 1e-6;
  Cluster& cluster = question.cluster;
  cluster.gpu.tflops_16 = cluster.gpu.tflops_f32 = kTflops;
  cluster.gpu.tflops_fp8 = 0, cluster.gpu.sustained_clock = 1;
  const Curve whole({{1, 1}}), peak({{1, kTflops}});
  cluster.matmul_efficiency = whole, cluster.fp8_efficiency = {};
  cluster.attention.clear();
  cluster.rates = {};
  for (const bool backward : {false, true}) {
    for (const bool causal : {false, true}) cluster.attention.push_back({backward, causal, 128, peak});
  }
  return question;
}

// ---- pipelines ----

// What each rank of a pipeline does, and when.
class PipelineLaw {
 public:
  PipelineLaw(const PipelineTimes& times, int ranks, int stages, std::int64_t micro_batches,
              const Trial& trial)
      : times_(times), stages_(stages), ranks_(ranks), micro_batches_(micro_batches), trial_(trial) {}

  void check() {
    for (int rank = 0; rank < ranks_; ++rank) one_at_a_time(rank);
    require(chunks_.size() == 2 * static_cast<std::size_t>(stages_ * micro_batches_), chunks_.size(),
            " passes of ", stages_, " stages and ", micro_batches_, " micro-batches");
    for (const auto& [key, chunk] : chunks_) in_order(*chunk);
    double end = 0;
    for (const auto& [key, chunk] : chunks_) end = std::max(end, chunk->end_ns);
    require(end == times_.time_ns, "the last pass ends at ", end, " ns, all of it at ", times_.time_ns);
  }

 private:
  template <class... Words>
  void require(bool holds, const Words&... words) const {
    trial_.require(holds, "pipeline", words...);
  }
  static std::string words(const PipelineChunk& chunk) {
    return str(chunk.backward ? "backward" : "forward", " of micro-batch ", chunk.micro_batch, " on stage ",
               chunk.stage, " from ", chunk.begin_ns, " to ", chunk.end_ns, " ns");
  }

  void one_at_a_time(int rank) {
    const auto& chunks = times_.chunks[static_cast<std::size_t>(rank)];
    double busy = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const PipelineChunk& chunk = chunks[i];
      busy += chunk.end_ns - chunk.begin_ns;
      require(chunk.stage % ranks_ == rank, "rank ", rank, " does ", words(chunk));
      require(chunks_.emplace(std::tuple{chunk.stage, chunk.micro_batch, chunk.backward}, &chunk).second,
              "twice: ", words(chunk));
      for (std::size_t before = 0; before < i; ++before) {
        const bool apart = chunks[before].end_ns <= chunk.begin_ns || chunk.end_ns <= chunks[before].begin_ns;
        require(apart, "rank ", rank, " does two passes at once: ", words(chunks[before]), ", and ",
                words(chunk));
      }
    }
    const double idle = times_.idle_ns[static_cast<std::size_t>(rank)];
    require(std::abs(busy + idle - times_.time_ns) <= kSumRounding * times_.time_ns, "rank ", rank, " works ",
            busy, " ns and waits ", idle, " of ", times_.time_ns);
  }

  // After what its input comes from: forward from the stage before, backward from the one behind it, or its
  // own forward pass.
  void in_order(const PipelineChunk& chunk) const {
    const int before = chunk.backward ? chunk.stage + 1 : chunk.stage - 1;
    if (before < 0) return;
    const bool turns = before == stages_;
    const auto key = std::tuple{turns ? chunk.stage : before, chunk.micro_batch, chunk.backward && !turns};
    const auto found = chunks_.find(key);
    require(found != chunks_.end(), "nobody makes the input of ", words(chunk));
    require(found->second->end_ns <= chunk.begin_ns, words(chunk), " begins before ", words(*found->second));
  }

  const PipelineTimes& times_;
  const int stages_, ranks_;
  const std::int64_t micro_batches_;
  const Trial& trial_;
  std::map<std::tuple<int, std::int64_t, bool>, const PipelineChunk*> chunks_;
};

}  // namespace

void check_layout_texts(const StepRequest& request, const Trial& trial) {
  for (const ParallelLayout& layout : neighbours(request.layout)) {
    const std::string text = to_string(layout);
    const ParallelLayout read = trial.property("layout texts", [&] { return parse_parallel_layout(text); });
    trial.require(read == layout, "layout texts", "a layout that is written as ", text,
                  " is read as another one; one that reads so is written as ", to_string(read),
                  ", with micro_batch=", layout.micro_batch, ", loss_chunks=", layout.loss_chunks,
                  ", recompute=", to_string(layout.recompute));
  }
}

void check_pairs(const StepRequest& request, const Trial& trial) {
  const AttentionProblem problem =
      attention_problem(request.model, request.workload, request.layout, first_attention(request.model));
  if (!problem.causal) return;
  const ParallelLayout& layout = request.layout;
  const auto count = [&](const IndexSet& rows, bool by_key) { count_pairs(problem, rows, by_key, trial); };
  for (const std::int64_t parts : {1, 2, 3}) {
    for (const bool by_key : {false, true}) {
      const std::int64_t rows = by_key ? problem.kv_len : problem.q_len;
      for (std::int64_t part = 0; part < parts; ++part)
        count(index_range(part * rows / parts, (part + 1) * rows / parts), by_key);
    }
  }
  if (layout.cp == 1) return;
  const AttentionSharding sharding(problem, layout.cp, layout.strategy);
  for (int index = 0; index < layout.cp; ++index) {
    count(sharding.compute_q(index).rows, false);
    count(sharding.compute_kv(index).rows, true);
  }
}

void check_declared(const Memory& memory, const std::vector<Plan>& parts, const Trial& trial) {
  std::map<std::string, std::int64_t> callers;
  std::int64_t arena = 0;
  for (const Plan& plan : parts) {
    arena = std::max(arena, plan.arena_bytes + plan.symmetric_bytes);
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.kind == BufferKind::temporary || buffer.name.starts_with("host/")) continue;
      callers[buffer.name] = std::max(callers[buffer.name], buffer.bytes());
    }
  }
  std::int64_t declared = arena;
  for (const auto& [name, bytes] : callers) declared += bytes;
  trial.require(memory.allocated() == declared, "memory", memory.allocated(),
                " bytes are read from plans of ", parts.front().self, ", which declare ", declared,
                ", of them ", arena, " in an arena");
}

void check_pipeline_times(const PipelineTimes& times, int ranks, int stages, std::int64_t micro_batches,
                          const Trial& trial) {
  PipelineLaw(times, ranks, stages, micro_batches, trial).check();
}

void check_pipeline(const StepRequest& request, const std::string& cluster, const Trial& trial) {
  if (request.layout.pp == 1 || request.workload.phase != Phase::training) return;
  const PlanQuestion as_it_is = question_of(request, cluster);
  for (const PlanQuestion& question : {as_it_is, slowed(as_it_is)}) {
    const PipelineTimes times =
        trial.property("pipeline", [&] { return Evaluator(question).schedule(request.layout); });
    check_pipeline_times(times, request.layout.pp, request.layout.pp * request.layout.virtual_stages,
                         accumulation(request.workload, request.layout), trial);
  }
}

SlowTimes slow_times(const StepRequest& request, const std::string& cluster) {
  const PlanQuestion question = slowed(question_of(request, cluster));
  return {Evaluator(question).evaluate(request.layout).step_us * 1e3, StepBound(question).ns(request.layout)};
}

void check_slow_machine(const StepRequest& request, const std::string& cluster, const Trial& trial) {
  // The rank with most pairs stands for all where all have as many rows.
  const AttentionProblem problem =
      attention_problem(request.model, request.workload, request.layout, first_attention(request.model));
  const int cp = request.layout.cp;
  if (cp > 1 && most_home_rows(problem, cp, request.layout.strategy) * cp != problem.q_len) return;
  const SlowTimes times = trial.property("operations", [&] { return slow_times(request, cluster); });
  trial.require(times.bound_ns <= times.step_ns * (1 + kSumRounding), "operations", to_string(request.layout),
                " takes ", times.step_ns, " ns where multiplying is slow, less than its bound of ",
                times.bound_ns);
}

}  // namespace cp::sim
