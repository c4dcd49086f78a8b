#include "sim/proof/run/redistribute_run.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "shared/plan/plan_digests.h"
#include "shared/plan/transfer_check.h"
#include "shared/redistribute/scaled.h"
#include "sim/proof/run/redistribute_shards.h"
#include "sim/proof/run/tells_injected.h"

namespace cp::sim {
namespace {

// What the redistribution declares is without the padding that the plans' target asks for: less than one
// alignment for each temporary.
std::int64_t most_padding(std::span<const Plan> plans) {
  std::int64_t most = 0;
  for (const Plan& plan : plans) {
    const auto temporaries = std::ranges::count(plan.buffers, BufferKind::temporary, &Buffer::kind);
    most = std::max(most, temporaries * (plan.target.alignment_bytes - 1));
  }
  return most;
}

// As the cost model counts: records give an all_reduce its buffer for each peer.
std::int64_t wire_bytes_of(const OpRecord& record) {
  std::int64_t bytes = 0;
  for (const std::int64_t from_peer : record.received) bytes += from_peer;
  const auto n = static_cast<std::int64_t>(record.group.ranks.size());
  return record.operation == "all_reduce" && n > 1 ? 2 * bytes / n : bytes;
}

class RedistributeRunner {
 public:
  RedistributeRunner(const Redistribution& redistribution, std::span<const Plan> plans,
                     const RedistributeRunOptions& options)
      : redistribution_(redistribution),
        source_(redistribution.source),
        target_(redistribution.target),
        plans_(plans),
        options_(options),
        shards_(redistribution, options.seed, options.scale),
        fabric_(plans.back().self + 1, {.schedule = options.schedule,
                                        .seed = options.seed,
                                        .order = options.order,
                                        .faults = options.faults,
                                        .checksums = options.checksums}),
        plan_of_(static_cast<std::size_t>(fabric_.world_size())),
        buffers_(plan_of_.size()) {
    for (const Plan& plan : plans) plan_of_[static_cast<std::size_t>(plan.self)] = &plan;
  }

  RedistributeRun run() {
    result_.num_ranks = static_cast<int>(plans_.size());
    result_.check_s = phase("checking the plans", [&] { check_plans(); });
    const auto make_data = [&](const Plan& plan, Device&) {
      buffers_of(plan.self) = shards_.make(plan.self);
    };
    // To wake all ranks takes longer than a small run: where nobody is told of the phases, they are two.
    const bool tells = static_cast<bool>(options_.on_phase);
    if (tells) result_.fill_s = on_ranks("making data", make_data);
    result_.run_s = on_ranks("running", [&](const Plan& plan, Device& device) {
      if (!tells) make_data(plan, device);
      execute_plan(plan, device);
    });
    phase("comparing traces", [&] { check_traces(); });
    result_.compare_s = on_ranks("comparing", [&](const Plan& plan, Device&) {
      compare(plan.self);
      if (options_.digests) add_digest(plan.self);
    });
    if (!mismatches_.empty()) throw CheckFailure(shards_.explain(mismatches_));
    for (const Plan& plan : plans_) {
      result_.traces.push_back(std::move(fabric_.traces()[static_cast<std::size_t>(plan.self)]));
    }
    return std::move(result_);
  }

 private:
  RedistributeBuffers& buffers_of(Rank rank) { return buffers_[static_cast<std::size_t>(rank)]; }

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
      const TellsInjected tells(fabric_, options_.injected);
      fabric_.run([&](Rank rank, Device& device) {
        if (const Plan* plan = plan_of_[static_cast<std::size_t>(rank)]) work(*plan, device);
      });
    });
  }

  void check_plans() {
    if (options_.check_plans) {
      CheckLimits limits;
      limits.peak_bytes = peak_limit_bytes(redistribution_, plans_);
      check(plans_, limits);
    }
    if (options_.compare_digests) require_equal_plans(plans_);
    for (const Plan& plan : plans_) {
      result_.memory_bytes += peak_bytes(plan);
      result_.peak_bytes = std::max(result_.peak_bytes, peak_bytes(plan));
    }
  }

  void execute_plan(const Plan& plan, Device& device) {
    Bindings bindings = buffers_of(plan.self).bindings();
    // A program of another problem has buffers of its own.
    if (!options_.check_plans) {
      std::erase_if(bindings, [&](const Binding& binding) {
        return plan.buffers[static_cast<std::size_t>(binding.buffer)].bytes() != binding.size_bytes;
      });
    }
    execute(plan, device, bindings, &fabric_.traces()[static_cast<std::size_t>(plan.self)]);
  }

  void check_traces() {
    const std::vector<RankTrace>& traces = fabric_.traces();
    if (const auto fault = find_transfer_fault(traces)) throw *fault;
    if (const auto difference = first_difference(traces, traces)) {
      throw CheckFailure(str("what happened is not what the plan asked for: ", *difference));
    }
    result_.wire_bytes = wire_bytes(traces);
    const std::int64_t planned = planned_wire_bytes(redistribution_);
    if (result_.wire_bytes != planned) {
      throw LedgerFailure(str("the ranks received ", result_.wire_bytes, " bytes, where the planner counted ",
                              planned, " (", placements_to_string(source_), " -> ",
                              placements_to_string(target_), ")"));
    }
  }

  // Of partners that hold contributions to the same elements the first one compares their combination.
  void compare(Rank rank) {
    if (buffers_of(rank).target_bytes == 0) return;
    const std::vector<Rank> partners = shards_.partners_of(rank);
    if (partners.front() != rank) return;
    std::vector<const RedistributeBuffers*> buffers;
    std::int64_t bytes = 0;
    for (const Rank partner : partners) {
      buffers.push_back(&buffers_of(partner));
      bytes += buffers_of(partner).target_bytes;
    }
    const auto mismatch = shards_.compare(rank, buffers);
    const std::lock_guard lock(mutex_);
    result_.bytes_compared += bytes;
    result_.elements_compared += bytes / size_bytes(target_.dtype);
    if (mismatch) mismatches_.push_back(*mismatch);
  }

  void add_digest(Rank rank) {
    if (const auto digest = shards_.digest(buffers_of(rank)))
      fabric_.traces()[static_cast<std::size_t>(rank)].digests["output"] = *digest;
  }

  const Redistribution& redistribution_;
  const Layout& source_;
  const Layout& target_;
  std::span<const Plan> plans_;
  const RedistributeRunOptions& options_;
  const RedistributeShards shards_;
  Fabric fabric_;
  std::vector<const Plan*> plan_of_;          // by rank; null for ranks outside of both meshes
  std::vector<RedistributeBuffers> buffers_;  // by rank
  RedistributeRun result_;
  std::mutex mutex_;  // of the result and of:
  std::vector<RedistributeMismatch> mismatches_;
};

Rank last_rank(const Redistribution& redistribution) {
  Rank last = 0;
  for (const Layout* layout : {&redistribution.source, &redistribution.target}) {
    for (const Rank rank : layout->mesh.ranks()) last = std::max(last, rank);
  }
  return last;
}

// A shape of the same tensor that needs at most this part of the memory: shorter in its longest dimension,
// where possible by a multiple of what shards it.
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
  // Estimated as in attention_run_memory.cc: a thread's stack, its queues and its trace.
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

std::int64_t peak_limit_bytes(const Redistribution& redistribution, std::span<const Plan> plans) {
  return redistribution.peak_bytes + most_padding(plans);
}

std::int64_t planned_wire_bytes(const Redistribution& redistribution) {
  std::int64_t bytes = 0;
  for (const RedistributionStep& step : redistribution.steps) bytes += step.wire_bytes_received_total;
  return bytes;
}

std::int64_t wire_bytes(std::span<const RankTrace> traces) {
  std::int64_t bytes = 0;
  for (const RankTrace& trace : traces) {
    for (const OpRecord& record : trace.observed) bytes += wire_bytes_of(record);
  }
  return bytes;
}

RedistributeRun run_redistribution(const Redistribution& redistribution,
                                   const RedistributeRunOptions& options) {
  require_resources(redistribution, options);
  if (options.on_phase) options.on_phase("writing the plans");
  const std::vector<Plan> plans = lower_all_scaled(redistribution, options.scale, options.target);
  return run_redistribution(redistribution, plans, options);
}

RedistributeRun run_redistribution(const Redistribution& redistribution, std::span<const Plan> plans,
                                   const RedistributeRunOptions& options) {
  require_resources(redistribution, options);
  return RedistributeRunner(redistribution, plans, options).run();
}

}  // namespace cp::sim
