#include "sim/proof/run/recurrence_run.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <span>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "sim/proof/run/recurrence_run_memory.h"

namespace cp::sim {
namespace {

class StateRunner {
 public:
  StateRunner(const RecurrenceTestData& data, const RecurrenceRequest& request,
              const RecurrenceRunOptions& options)
      : data_(data),
        request_(request),
        options_(options),
        shards_(data, request),
        fabric_(*std::max_element(request.ranks.begin(), request.ranks.end()) + 1,
                {.schedule = options.schedule,
                 .seed = options.seed,
                 .order = options.order,
                 .faults = options.faults}),
        buffers_(static_cast<std::size_t>(fabric_.world_size())) {}

  RecurrenceRun run(std::span<const Plan> forward, std::span<const Plan> backward) {
    tolerances_ = recurrence_tolerances(data_, static_cast<int>(request_.ranks.size()), !backward.empty());
    result_.forward = pass(RecurrencePass::forward, forward);
    if (!backward.empty()) result_.backward = pass(RecurrencePass::backward, backward);
    result_.errors.reserve(errors_.size());
    for (auto& [tensor, error] : errors_) result_.errors.push_back(std::move(error));
    for (auto [name, findings] : {std::pair("states", &states_), std::pair("bytes", &bytes_)}) {
      result_.verdicts.push_back({name, findings->empty(), findings->empty() ? "" : findings->summary()});
    }
    return std::move(result_);
  }

 private:
  RankBuffers& buffers_of(Rank rank) { return buffers_[static_cast<std::size_t>(rank)]; }
  void phase(std::string_view name) const {
    if (options_.on_phase) options_.on_phase(name);
  }

  RecurrencePassResult pass(RecurrencePass which, std::span<const Plan> plans) {
    RecurrencePassResult result;
    phase("checking the plans");
    check(plans);
    for (const Plan& plan : plans) count_steps(plan, result);
    fabric_.clear_traces();
    std::vector<const Plan*> by_rank(buffers_.size());
    for (const Plan& plan : plans) by_rank[static_cast<std::size_t>(plan.self)] = &plan;
    phase("running");
    fabric_.run([&](Rank rank, Device& device) {
      const Plan* plan = by_rank[static_cast<std::size_t>(rank)];
      if (plan == nullptr) return;
      const Bindings bindings = shards_.bind(*plan, buffers_of(rank));
      RankTrace& trace = fabric_.traces()[static_cast<std::size_t>(rank)];
      execute(*plan, device, bindings, &trace);
      trace.digests = RecurrenceShards::digests(*plan, buffers_of(rank));
    });
    std::vector<bool> members;
    for (const Plan* plan : by_rank) members.push_back(plan != nullptr);
    const std::int64_t delivered = keep_traces(fabric_.traces(), members, result_.traces, result_.verdicts);
    phase("keeping the ledger");
    keep_books(which, plans, delivered, result);
    phase("comparing");
    if (options_.keep_results) make_room(plans);
    fabric_.run([&](Rank rank, Device&) {
      const Plan* plan = by_rank[static_cast<std::size_t>(rank)];
      if (plan != nullptr) compare(*plan);
    });
    return result;
  }

  static void count_steps(const Plan& plan, RecurrencePassResult& result) {
    const std::vector<StepRef> steps = steps_of(plan);
    const auto hops = std::count_if(steps.begin(), steps.end(),
                                    [](const StepRef& ref) { return is_collective(*ref.step); });
    result.steps = std::max(result.steps, static_cast<int>(steps.size()));
    result.hops = std::max(result.hops, static_cast<int>(hops));
    result.peak_bytes = std::max(result.peak_bytes, peak_bytes(plan));
  }

  void keep_books(RecurrencePass which, std::span<const Plan> plans, std::int64_t delivered,
                  RecurrencePassResult& result) {
    const RecurrenceLedger ledger = keep_ledger(request_, which, plans);
    for (const std::string& text : ledger.states.texts()) states_.add([&] { return text; });
    for (const std::string& text : ledger.bytes.texts()) bytes_.add([&] { return text; });
    const auto add = [](const StateBytes& one, StateBytes& sum) {
      sum.states += one.states, sum.transitions += one.transitions, sum.rows += one.rows;
    };
    for (const StateBytes& received : ledger.received) {
      add(received, result.received);
      result.received_max = std::max(result.received_max, received.total());
    }
    for (const StateBytes& expected : ledger.expected) add(expected, result.expected);
    if (delivered != result.received.total()) {
      bytes_.add([&] {
        return str("the fabric delivered ", delivered, " bytes, where the plans move ",
                   result.received.total());
      });
    }
  }

  // Of each result, filled with NaN.
  void make_room(std::span<const Plan> plans) {
    for (const Buffer& buffer : plans.front().buffers) {
      if (buffer.kind != BufferKind::output || buffer.name.starts_with("saved_")) continue;
      result_.results[buffer.name].assign(global_tensor(data_, buffer.name).size(),
                                          std::numeric_limits<double>::quiet_NaN());
    }
  }

  void compare(const Plan& plan) {
    const RankBuffers& buffers = buffers_of(plan.self);
    if (options_.keep_results) shards_.gather(plan, buffers, result_.results);
    const std::map<std::string, TensorError> errors = shards_.compare(plan, buffers, tolerances_);
    const std::lock_guard lock(mutex_);
    for (const auto& [tensor, error] : errors) {
      const auto [known, added] = errors_.try_emplace(tensor, error);
      if (!added) known->second.add(error);
    }
  }

  const RecurrenceTestData& data_;
  const RecurrenceRequest& request_;
  const RecurrenceRunOptions& options_;
  const RecurrenceShards shards_;
  Fabric fabric_;
  std::vector<RankBuffers> buffers_;  // by rank
  RecurrenceTolerances tolerances_;
  RecurrenceRun result_;
  Findings states_, bytes_;
  std::mutex mutex_;  // of errors_
  std::map<std::string, TensorError> errors_;
};

}  // namespace

bool RecurrenceRun::holds() const {
  return std::all_of(verdicts.begin(), verdicts.end(),
                     [](const Verdict& verdict) { return verdict.holds; }) &&
         std::all_of(errors.begin(), errors.end(), [](const TensorError& error) { return error.holds(); });
}

RecurrenceRun run_recurrence(const RecurrenceTestData& data, const RecurrenceRequest& request,
                             const RecurrenceRunOptions& options) {
  if (options.on_phase) options.on_phase("planning");
  const std::vector<Plan> forward = recurrence_plans(request, RecurrencePass::forward, options.target);
  std::vector<Plan> backward;
  if (options.backward) backward = recurrence_plans(request, RecurrencePass::backward, options.target);
  return run_recurrence(data, request, forward, backward, options);
}

RecurrenceRun run_recurrence(const RecurrenceTestData& data, const RecurrenceRequest& request,
                             const std::vector<Plan>& forward, const std::vector<Plan>& backward,
                             const RecurrenceRunOptions& options) {
  if (options.memory_limit_bytes) {
    require_memory(request.problem, "the ranks together", ranks_state_bytes(forward, backward),
                   *options.memory_limit_bytes);
  }
  const auto begin = std::chrono::steady_clock::now();
  RecurrenceRun run = StateRunner(data, request, options).run(forward, backward);
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
}

}  // namespace cp::sim
