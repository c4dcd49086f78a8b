#include "sim/proof/run/attention_run.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "shared/plan/plan_digests.h"
#include "sim/proof/ledger/attention_ledger.h"
#include "sim/proof/ledger/peak_bound.h"
#include "sim/proof/run/attention_run_memory.h"
#include "sim/proof/run/attention_tolerance.h"
#include "sim/proof/run/tells_injected.h"

namespace cp::sim {
namespace {

class Runner {
 public:
  Runner(const AttentionTestData& data, const AttentionRequest& request, const AttentionRunOptions& options)
      : data_(data),
        request_(request),
        options_(options),
        shards_(data, request),
        fabric_(*std::max_element(request.ranks.begin(), request.ranks.end()) + 1,
                {.schedule = options.schedule,
                 .seed = options.seed,
                 .order = options.order,
                 .faults = options.faults,
                 .checksums = options.checksums}),
        buffers_(static_cast<std::size_t>(fabric_.world_size())) {}

  AttentionRun run(std::span<const Plan> forward, std::span<const Plan> backward) {
    result_.num_ranks = static_cast<int>(request_.ranks.size());
    tolerances_ = attention_tolerances(data_, request_, !backward.empty(), forward.front().target);
    result_.forward = pass(AttentionPass::forward, forward);
    if (!backward.empty()) result_.backward = pass(AttentionPass::backward, backward);
    for (auto& [tensor, error] : errors_) result_.errors.push_back(std::move(error));
    if (options_.check_plans) {
      add_verdict("mask cells", cells_);
      add_verdict("bytes", bytes_);
      add_verdict("peak memory", peaks_);
    }
    return std::move(result_);
  }

 private:
  RankBuffers& buffers_of(const Plan& plan) { return buffers_[static_cast<std::size_t>(plan.self)]; }

  template <class Work>
  void phase(std::string_view name, double& seconds, const Work& work) {
    if (options_.on_phase) options_.on_phase(name);
    const auto begin = std::chrono::steady_clock::now();
    work();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void add_verdict(std::string name, const Findings& findings) {
    result_.verdicts.push_back(
        {std::move(name), findings.empty(), findings.empty() ? "" : findings.summary()});
  }

  AttentionPassResult pass(AttentionPass which, std::span<const Plan> plans) {
    AttentionPassResult result;
    phase("checking the plans", result_.check_s, [&] {
      if (options_.check_plans) check_plans(which, plans, result);
      if (options_.compare_digests) require_equal_plans(plans);
    });
    fabric_.clear_traces();
    by_rank_.assign(buffers_.size(), nullptr);
    for (const Plan& plan : plans) by_rank_[static_cast<std::size_t>(plan.self)] = &plan;
    phase("running", result_.run_s, [&] {
      const TellsInjected tells(fabric_, options_.injected);
      fabric_.run([&](Rank rank, Device& device) {
        const Plan* plan = by_rank_[static_cast<std::size_t>(rank)];
        if (plan == nullptr) return;
        const Bindings bindings = shards_.bind(which, *plan, buffers_of(*plan));
        RankTrace& trace = fabric_.traces()[static_cast<std::size_t>(rank)];
        execute(*plan, device, bindings, &trace);
        trace.digests = AttentionShards::digests(request_.problem, *plan, buffers_of(*plan));
      });
    });
    std::vector<bool> members;
    for (const Plan* plan : by_rank_) members.push_back(plan != nullptr);
    const std::int64_t delivered = keep_traces(fabric_.traces(), members, result_.traces, result_.verdicts);
    if (options_.check_plans)
      phase("keeping the ledger", result_.ledger_s, [&] { keep_books(which, plans, delivered, result); });
    phase("comparing", result_.compare_s, [&] {
      if (options_.keep_results) shards_.make_room(which, result_.results);
      fabric_.run([&](Rank rank, Device&) {
        const Plan* plan = by_rank_[static_cast<std::size_t>(rank)];
        if (plan != nullptr) compare(which, *plan);
      });
    });
    return result;
  }

  void check_plans(AttentionPass which, std::span<const Plan> plans, AttentionPassResult& result) {
    check(plans);
    for (const Plan& plan : plans) {
      const std::int64_t bound = peak_bound_bytes(request_, which, shards_.index_of(plan.self), plan);
      const std::int64_t peak = peak_bytes(plan);
      result.steps = std::max(result.steps, static_cast<int>(steps_of(plan).size()));
      if (peak > result.peak_bytes) result.peak_bytes = peak;
      result.peak_bound_bytes = std::max(result.peak_bound_bytes, bound);
      if (peak > bound) {
        peaks_.add([&] {
          return str("rank ", plan.self, " needs ", peak, " bytes, where its parts and the strategy allow ",
                     bound);
        });
      }
    }
  }

  void keep_books(AttentionPass which, std::span<const Plan> plans, std::int64_t delivered,
                  AttentionPassResult& result) {
    const AttentionLedger ledger = keep_ledger(request_, which, plans);
    for (const std::string& text : ledger.cells.texts()) cells_.add([&] { return text; });
    for (const std::string& text : ledger.bytes.texts()) bytes_.add([&] { return text; });
    result.cells = ledger.num_cells;
    for (const Received& received : ledger.received) {
      result.bytes_received += received.total();
      result.bytes_received_max = std::max(result.bytes_received_max, received.total());
      result.redundant_kv_bytes += received.redundant_kv;
    }
    for (const Received& expected : ledger.expected) result.expected_bytes += expected.total();
    if (delivered != result.bytes_received) {
      bytes_.add([&] {
        return str("the fabric delivered ", delivered, " bytes, where the plans move ",
                   result.bytes_received);
      });
    }
  }

  void compare(AttentionPass which, const Plan& plan) {
    const RankBuffers& buffers = buffers_of(plan);
    if (options_.keep_results) shards_.gather(which, plan, buffers, result_.results);
    const std::map<Tensor, TensorError> errors = shards_.compare(which, plan, buffers, tolerances_);
    const std::lock_guard lock(mutex_);
    for (const auto& [tensor, error] : errors) {
      const auto [known, added] = errors_.try_emplace(tensor, error);
      if (!added) known->second.add(error);
    }
  }

  const AttentionTestData& data_;
  const AttentionRequest& request_;
  const AttentionRunOptions& options_;
  const AttentionShards shards_;
  Fabric fabric_;
  std::vector<RankBuffers> buffers_;  // by rank
  std::vector<const Plan*> by_rank_;  // of the pass; null for ranks outside
  AttentionTolerances tolerances_;
  AttentionRun result_;
  Findings cells_, bytes_, peaks_;
  std::mutex mutex_;  // of errors_
  std::map<Tensor, TensorError> errors_;
};

}  // namespace

bool AttentionRun::holds() const {
  return std::all_of(verdicts.begin(), verdicts.end(),
                     [](const Verdict& verdict) { return verdict.holds; }) &&
         std::all_of(errors.begin(), errors.end(), [](const TensorError& error) { return error.holds(); });
}

AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const AttentionRunOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  if (options.memory_limit_bytes) require_planning_memory(request, true, *options.memory_limit_bytes);
  if (options.on_phase) options.on_phase("planning");
  const std::vector<Plan> forward = attention_plans(request, AttentionPass::forward, options.target);
  std::vector<Plan> backward;
  if (options.backward) backward = attention_plans(request, AttentionPass::backward, options.target);
  const double plan_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  AttentionRun run = run_attention(data, request, forward, backward, options);
  run.plan_s = plan_s;
  return run;
}

AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const std::vector<Plan>& forward, const std::vector<Plan>& backward,
                           const AttentionRunOptions& options) {
  if (options.memory_limit_bytes) {
    require_memory(data.problem(), "the ranks", ranks_bytes(forward, backward), *options.memory_limit_bytes);
  }
  return Runner(data, request, options).run(forward, backward);
}

}  // namespace cp::sim
