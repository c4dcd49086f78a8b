#include "sim/run/redistribute_run.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "shared/kernels/elements.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"
#include "sim/run/shard_runs.h"
#include "sim/run/test_values.h"

namespace cp::sim {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements that are made or compared at a time

std::int64_t bytes_on(const Layout& layout, Rank rank) {
  return layout.mesh.contains(rank) ? local_bytes(layout, rank) : 0;
}

struct RankMemory {
  std::unique_ptr<std::byte[]> source, target;
  std::int64_t source_bytes = 0, target_bytes = 0;
};

// Calls visit(global, local, count) for blocks of at most kBlock elements of the rank's shard.
template <class Visit>
void for_each_block(const Layout& layout, Rank rank, const Visit& visit) {
  for_each_stretch(box(layout, rank), layout.shape,
                   [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                     for (std::int64_t begin = 0; begin < count; begin += kBlock) {
                       visit(global + begin, local + begin, std::min(kBlock, count - begin));
                     }
                   });
}

// The ranks that hold contributions to the same elements of a layout; the shards of all of them lie alike.
std::vector<Rank> partners_of(const Layout& layout, Rank rank) {
  return layout.mesh.group_of(rank, partial_axes(layout));
}

double combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::product:
      return a * b;
  }
  return 0;
}

class Run {
 public:
  Run(const Redistribution& redistribution, std::span<const Plan> plans,
      const RedistributeRunOptions& options)
      : redistribution_(redistribution),
        source_(redistribution.source),
        target_(redistribution.target),
        plans_(plans),
        options_(options),
        values_(redistribution, options.seed),
        fabric_(plans.back().self + 1, {.schedule = options.schedule, .seed = options.seed}),
        plan_of_(static_cast<std::size_t>(fabric_.world_size())),
        memory_(plan_of_.size()) {
    for (const Plan& plan : plans) plan_of_[static_cast<std::size_t>(plan.self)] = &plan;
  }

  RedistributeRun run() {
    result_.num_ranks = static_cast<int>(plans_.size());
    result_.check_s = phase("checking the plans", [&] { check_plans(); });
    result_.fill_s = on_ranks("making data", [&](const Plan& plan, Device&) { make_data(plan); });
    result_.run_s =
        on_ranks("running", [&](const Plan& plan, Device& device) { execute_plan(plan, device); });
    phase("comparing traces", [&] { check_traces(); });
    result_.compare_s = on_ranks("comparing", [&](const Plan& plan, Device&) { compare(plan.self); });
    raise_mismatches();
    if (options_.digests) on_ranks("digests", [&](const Plan& plan, Device&) { add_digest(plan.self); });
    for (const Plan& plan : plans_) {
      result_.traces.push_back(std::move(fabric_.traces()[static_cast<std::size_t>(plan.self)]));
    }
    return std::move(result_);
  }

 private:
  struct Mismatch {
    std::int64_t count = 0;
    std::int64_t global = -1, local = -1;  // of the first one
    double found = 0, expected = 0;
  };

  RankMemory& memory_of(Rank rank) { return memory_[static_cast<std::size_t>(rank)]; }

  template <class Work>
  double phase(std::string_view name, const Work& work) {
    if (options_.on_phase) options_.on_phase(name);
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  template <class Work>
  double on_ranks(std::string_view name, const Work& work) {
    return phase(name, [&] {
      fabric_.run([&](Rank rank, Device& device) {
        if (const Plan* plan = plan_of_[static_cast<std::size_t>(rank)]) work(*plan, device);
      });
    });
  }

  void check_plans() {
    CheckLimits limits;
    limits.peak_bytes = redistribution_.peak_bytes;
    check(plans_, limits);
    for (const Plan& plan : plans_) {
      result_.memory_bytes += peak_bytes(plan);
      result_.peak_bytes = std::max(result_.peak_bytes, peak_bytes(plan));
    }
  }

  void make_data(const Plan& plan) {
    RankMemory& memory = memory_of(plan.self);
    memory.source_bytes = bytes_on(source_, plan.self);
    memory.target_bytes = bytes_on(target_, plan.self);
    const auto allocate = [](std::int64_t bytes) {
      return std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
    };
    memory.source = allocate(memory.source_bytes);
    memory.target = allocate(memory.target_bytes);
    // As HostMemory does: what nobody writes is no number that anybody expects.
    std::fill_n(memory.target.get(), memory.target_bytes, std::byte{0xfb});
    if (memory.source_bytes > 0) fill_source(plan.self);
  }

  void fill_source(Rank rank) {
    const std::int64_t contribution = values_.contribution_of(rank);
    with_element_type(source_.dtype, [&]<class T>(std::type_identity<T>) {
      T* const data = reinterpret_cast<T*>(memory_of(rank).source.get());
      std::array<std::int64_t, kBlock> block;
      for_each_block(source_, rank, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
        const std::span values(block.data(), static_cast<std::size_t>(count));
        values_.fill(global, contribution, values);
        for (std::size_t i = 0; i < values.size(); ++i)
          data[static_cast<std::size_t>(local) + i] = convert<T>(values[i]);
      });
    });
  }

  void execute_plan(const Plan& plan, Device& device) {
    RankMemory& memory = memory_of(plan.self);
    const Bindings bindings = {{kRedistributeInput, memory.source.get(), memory.source_bytes},
                               {kRedistributeOutput, memory.target.get(), memory.target_bytes}};
    execute(plan, device, bindings, &fabric_.traces()[static_cast<std::size_t>(plan.self)]);
  }

  void check_traces() {
    const std::vector<RankTrace>& traces = fabric_.traces();
    if (const auto difference = first_difference(traces, traces)) {
      throw CheckFailure(str("what happened is not what the plan asked for: ", *difference));
    }
    for (const RankTrace& trace : traces) {
      for (const OpRecord& record : trace.observed) result_.wire_bytes += wire_bytes(record);
    }
    std::int64_t planned = 0;
    for (const RedistributionStep& step : redistribution_.steps) planned += step.wire_bytes_received_total;
    if (result_.wire_bytes != planned) {
      throw LedgerFailure(str("the ranks received ", result_.wire_bytes, " bytes, where the planner counted ",
                              planned, " (", placements_to_string(source_), " -> ",
                              placements_to_string(target_), ")"));
    }
  }

  // As the cost model counts: records give an all_reduce its buffer for each peer.
  static std::int64_t wire_bytes(const OpRecord& record) {
    std::int64_t bytes = 0;
    for (const std::int64_t from_peer : record.received) bytes += from_peer;
    const auto n = static_cast<std::int64_t>(record.group.ranks.size());
    return record.operation == "all_reduce" && n > 1 ? 2 * bytes / n : bytes;
  }

  // ---- comparing ----

  // Of partners that hold contributions to the same elements the first one compares their combination.
  void compare(Rank rank) {
    if (memory_of(rank).target_bytes == 0) return;
    const std::vector<Rank> partners = partners_of(target_, rank);
    if (partners.front() != rank) return;
    with_element_type(target_.dtype, [&]<class T>(std::type_identity<T>) { compare_as<T>(partners); });
  }

  template <class T>
  void compare_as(const std::vector<Rank>& partners) {
    const ReduceOp op = reduction(target_).value_or(ReduceOp::sum);
    std::vector<const T*> shards;
    shards.reserve(partners.size());
    for (const Rank rank : partners)
      shards.push_back(reinterpret_cast<const T*>(memory_of(rank).target.get()));
    const double divisor = averaged_ranks();
    const double tolerance = values_.tolerance();
    std::array<std::int64_t, kBlock> block;
    Mismatch mismatch;
    for_each_block(target_, partners.front(),
                   [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                     const std::span expected(block.data(), static_cast<std::size_t>(count));
                     values_.fill_reduced(global, expected);
                     for (std::size_t i = 0; i < expected.size(); ++i) {
                       const std::size_t at = static_cast<std::size_t>(local) + i;
                       double found = static_cast<double>(load(shards.front()[at]));
                       for (std::size_t s = 1; s < shards.size(); ++s) {
                         found = combine(op, found, static_cast<double>(load(shards[s][at])));
                       }
                       const double wanted = static_cast<double>(expected[i]);
                       if (std::abs(found / divisor - wanted) <= tolerance) continue;  // false for a NaN
                       if (mismatch.count++ == 0) {
                         const auto offset = static_cast<std::int64_t>(i);
                         mismatch = {1, global + offset, local + offset, found / divisor, wanted};
                       }
                     }
                   });
    std::int64_t compared = 0;
    for (const Rank rank : partners) compared += memory_of(rank).target_bytes;
    const std::lock_guard lock(mutex_);
    result_.bytes_compared += compared;
    result_.elements_compared += compared / static_cast<std::int64_t>(sizeof(T));
    if (mismatch.count > 0) mismatches_.emplace_back(partners.front(), mismatch);
  }

  double averaged_ranks() const {
    double ranks = 1;
    for (const int axis : partial_axes(target_)) {
      const auto& partial = std::get<Partial>(target_.placements[static_cast<std::size_t>(axis)]);
      if (partial.op == ReduceOp::avg) ranks *= target_.mesh.axis_size(axis);
    }
    return ranks;
  }

  void raise_mismatches() const {
    if (mismatches_.empty()) return;
    const auto& [rank, mismatch] =
        *std::min_element(mismatches_.begin(), mismatches_.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; });
    std::int64_t count = 0;
    for (const auto& [other, theirs] : mismatches_) count += theirs.count;
    Shape index(target_.shape.size());
    std::int64_t rest = mismatch.global;
    for (std::size_t dim = index.size(); dim-- > 0; rest /= target_.shape[dim])
      index[dim] = rest % target_.shape[dim];
    const bool reduced = is_partial(target_);
    throw CheckFailure(str(count, " elements on ", mismatches_.size(),
                           " ranks are wrong; the first one, on rank ", rank, ": output[", mismatch.local,
                           "], which is element (", join(index, ", "), ") of the tensor, ",
                           reduced ? "adds up to " : "is ", mismatch.found, " where the index sets say ",
                           mismatch.expected, " (seed ", options_.seed, ")"));
  }

  void add_digest(Rank rank) {
    if (values_.tolerance() != 0) return;
    const RankMemory& memory = memory_of(rank);
    Hasher hasher;
    hasher.add(
        std::span<const std::byte>(memory.target.get(), static_cast<std::size_t>(memory.target_bytes)));
    fabric_.traces()[static_cast<std::size_t>(rank)].digests["output"] = hasher.digest();
  }

  const Redistribution& redistribution_;
  const Layout& source_;
  const Layout& target_;
  std::span<const Plan> plans_;
  const RedistributeRunOptions& options_;
  TestValues values_;
  Fabric fabric_;
  std::vector<const Plan*> plan_of_;  // by rank; null for ranks outside of both meshes
  std::vector<RankMemory> memory_;    // by rank
  RedistributeRun result_;
  std::mutex mutex_;  // of the result and of:
  std::vector<std::pair<Rank, Mismatch>> mismatches_;
};

Rank last_rank(const Redistribution& redistribution) {
  Rank last = 0;
  for (const Layout* layout : {&redistribution.source, &redistribution.target}) {
    for (const Rank rank : layout->mesh.ranks()) last = std::max(last, rank);
  }
  return last;
}

// A shape of the same tensor that needs at most this part of the memory: shorter in its longest dimension, where
// possible by a multiple of what shards it.
Shape shrunk(const Layout& layout, double part) {
  Shape shape = layout.shape;
  const auto longest = std::max_element(shape.begin(), shape.end());
  const auto wanted = static_cast<std::int64_t>(static_cast<double>(*longest) * part);
  const std::int64_t ranks = layout.mesh.size();
  *longest = wanted >= ranks ? wanted / ranks * ranks : wanted;
  return shape;
}

void require_resources(const Redistribution& redistribution, const RedistributeRunOptions& options) {
  const Rank last = last_rank(redistribution);
  if (last >= kMaxRunRanks) {
    throw InvalidInput(str("a run has one thread for each rank up to the last, and rank ", last,
                           " is beyond the ", kMaxRunRanks,
                           " that are allowed; number the ranks from 0, or use smaller meshes"));
  }
  const std::int64_t needed = run_memory_bytes(redistribution);
  const std::int64_t limit = options.memory_limit_bytes.value_or(needed);
  if (needed <= limit) return;
  const Shape smaller =
      shrunk(redistribution.source, static_cast<double>(limit) / static_cast<double>(needed));
  const int num_ranks = static_cast<int>(redistribution.source.mesh.size());
  throw InvalidInput(str("running ", join(redistribution.source.shape, "x"), " ",
                         name(redistribution.source.dtype), " on ", num_ranks, " ranks needs ",
                         human_bytes(needed), ", and ", human_bytes(limit), " are free; use --shape ",
                         join(smaller, "x"), ", or plan without running"));
}

}  // namespace

std::int64_t run_memory_bytes(const Redistribution& redistribution) {
  constexpr std::int64_t kThreadBytes = std::int64_t{256} << 10;
  std::int64_t temporaries = 0;
  for (const RedistributionStep& step : redistribution.steps) {
    temporaries = std::max(temporaries, step.temporary_bytes_max);
  }
  double bytes = 0;  // in floating point: a tensor of 2^62 bytes on many ranks
  for (const Layout* layout : {&redistribution.source, &redistribution.target}) {
    for (const Rank rank : layout->mesh.ranks()) bytes += static_cast<double>(local_bytes(*layout, rank));
  }
  std::vector<Rank> ranks = redistribution.source.mesh.ranks();
  for (const Rank rank : redistribution.target.mesh.ranks()) {
    if (!redistribution.source.mesh.contains(rank)) ranks.push_back(rank);
  }
  bytes += static_cast<double>(ranks.size()) * static_cast<double>(temporaries + kThreadBytes);
  return static_cast<std::int64_t>(std::min(bytes, 9e18));
}

RedistributeRun run_redistribution(const Redistribution& redistribution,
                                   const RedistributeRunOptions& options) {
  require_resources(redistribution, options);
  if (options.on_phase) options.on_phase("writing the plans");
  const std::vector<Plan> plans = lower_all(redistribution);
  return run_redistribution(redistribution, plans, options);
}

RedistributeRun run_redistribution(const Redistribution& redistribution, std::span<const Plan> plans,
                                   const RedistributeRunOptions& options) {
  require_resources(redistribution, options);
  return Run(redistribution, plans, options).run();
}

}  // namespace cp::sim
