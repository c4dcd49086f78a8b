#include "sim/scenario/recurrence_rank.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "sim/proof/run/free_memory.h"
#include "sim/proof/run/recurrence_run.h"
#include "sim/proof/run/recurrence_run_memory.h"
#include "sim/proof/run/require_exact.h"
#include "sim/scenario/recurrence_request.h"

namespace cp::sim {
namespace {

struct RecurrenceOfOne {
  RecurrenceJob job;
  RecurrenceRequest request;
};

RecurrenceOfOne recurrence_of_one(const proto::Recurrence& scenario, const Target& device = host_target()) {
  RecurrenceOfOne one{make_recurrence_job(scenario, device), {}};
  const RecurrenceJob& job = one.job;
  if (job.strategies.size() != 1) {
    throw InvalidInput(str("the scenario asks for ", job.strategies.size(),
                           " strategies, and processes run one; name it: strategy: \"",
                           name(job.strategies.front().scan), "\""));
  }
  const auto refusal =
      refuse(job.problem, static_cast<int>(job.ranks.size()), job.strategies.front(), job.target);
  if (refusal) throw InvalidInput(refusal->reason);
  one.request = {job.problem, job.ranks, job.strategies.front(), job.backward};
  return one;
}

std::vector<RecurrencePass> passes_of(const RecurrenceJob& job) {
  if (!job.backward) return {RecurrencePass::forward};
  return {RecurrencePass::forward, RecurrencePass::backward};
}

bool is_member(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

class RecurrenceRank : public RankJob {
 public:
  RecurrenceRank(RecurrenceOfOne one, Rank rank)
      : request_(std::move(one.request)), data_(request_.problem, one.job.seed), shards_(data_, request_) {
    const bool member = is_member(request_.ranks, rank);
    for (const RecurrencePass pass : passes_of(one.job)) {
      Plan plan = recurrence_plan(request_, pass, member ? rank : request_.ranks.front(), one.job.target);
      inputs_.push_back(plan.inputs);
      if (member) plans_.push_back(std::move(plan));
    }
  }

  Bindings bind(std::size_t pass) override { return shards_.bind(plans_[pass], buffers_); }
  std::map<std::string, Digest> digests(std::size_t pass) const override {
    return RecurrenceShards::digests(plans_[pass], buffers_);
  }
  std::vector<std::string> findings() const override {
    std::vector<std::string> findings;
    if (plans_.empty()) return findings;
    const RecurrenceTolerances tolerances =
        recurrence_tolerances(data_, static_cast<int>(request_.ranks.size()), plans_.size() > 1);
    for (const Plan& plan : plans_) {
      for (const auto& [tensor, error] : shards_.compare(plan, buffers_, tolerances)) {
        if (!error.holds()) findings.push_back(str(tensor, ": ", error.finding));
      }
    }
    return findings;
  }

 private:
  const RecurrenceRequest request_;
  const RecurrenceTestData data_;
  const RecurrenceShards shards_;
  RankBuffers buffers_;
};

}  // namespace

int world_size_of(const proto::Recurrence& scenario) {
  const std::vector<Rank> ranks = recurrence_of_one(scenario).request.ranks;
  return *std::max_element(ranks.begin(), ranks.end()) + 1;
}

RankMemory rank_memory(const proto::Recurrence& scenario, Rank rank) {
  const RecurrenceOfOne one = recurrence_of_one(scenario);
  const RecurrenceProblem& problem = one.request.problem;
  RankMemory memory;
  memory.inputs = test_input_bytes(problem);
  memory.results = test_data_bytes(problem, one.job.backward) - memory.inputs;
  for (const RecurrencePass pass : passes_of(one.job)) {
    if (is_member(one.request.ranks, rank))
      memory.plans += peak_bytes(recurrence_plan(one.request, pass, rank, one.job.target));
  }
  return memory;
}

std::unique_ptr<RankJob> make_rank_job(const proto::Recurrence& scenario, Rank rank, const Target& device) {
  return std::make_unique<RecurrenceRank>(recurrence_of_one(scenario, device), rank);
}

std::vector<RankTrace> simulate(const proto::Recurrence& scenario, const Target& device) {
  const RecurrenceOfOne one = recurrence_of_one(scenario, device);
  RecurrenceRunOptions options;
  options.backward = one.job.backward, options.schedule = one.job.schedule, options.seed = one.job.seed;
  options.target = one.job.target;
  options.memory_limit_bytes = free_memory_bytes();
  const RecurrenceTestData data(one.request.problem, one.job.seed);
  RecurrenceRun run = run_recurrence(data, one.request, options);
  require_exact(run.verdicts, run.errors);
  return std::move(run.traces);
}

}  // namespace cp::sim
