#include "sim/scenario/rank_job.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/redistribute/scaled.h"
#include "sim/proof/run/attention_run.h"
#include "sim/proof/run/attention_run_memory.h"
#include "sim/proof/run/attention_tolerance.h"
#include "sim/proof/run/free_memory.h"
#include "sim/proof/run/redistribute_run.h"
#include "sim/proof/run/redistribute_shards.h"
#include "sim/proof/run/require_exact.h"
#include "sim/scenario/attention_request.h"
#include "sim/scenario/recurrence_rank.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::sim {
namespace {

// ---- redistributions ----

class RedistributeRank : public RankJob {
 public:
  RedistributeRank(const RedistributeRequest& request, Rank rank)
      : RedistributeRank(plan_request(request), request, rank) {}

  RedistributeRank(Gradient planned, const RedistributeRequest& request, Rank rank)
      : rank_(rank),
        redistribution_(std::move(planned.redistribution)),
        shards_(redistribution_, request.seed, planned.scale) {
    const Mesh &source = redistribution_.source.mesh, &target = redistribution_.target.mesh;
    const bool member = source.contains(rank) || target.contains(rank);
    Plan plan = lower_scaled(redistribution_, planned.scale, member ? rank : source.ranks().front(),
                             request.device_target);
    inputs_.push_back(plan.inputs);
    if (member) plans_.push_back(std::move(plan));
  }

  Bindings bind(std::size_t) override {
    buffers_ = shards_.make(rank_);
    return buffers_.bindings();
  }

  std::map<std::string, Digest> digests(std::size_t) const override {
    const auto digest = shards_.digest(buffers_);
    return digest ? std::map<std::string, Digest>{{"output", *digest}} : std::map<std::string, Digest>();
  }

  // If the target is partial, its contributions lie on several ranks, so no rank alone can check them: the
  // digests in the traces do.
  std::vector<std::string> findings() const override {
    if (plans_.empty() || buffers_.target_bytes == 0 || is_partial(redistribution_.target)) return {};
    const RedistributeBuffers* const own[] = {&buffers_};
    const auto mismatch = shards_.compare(rank_, own);
    if (!mismatch) return {};
    return {shards_.explain({&*mismatch, 1})};
  }

 private:
  const Rank rank_;
  const Redistribution redistribution_;
  const RedistributeShards shards_;
  RedistributeBuffers buffers_;
};

// ---- attention ----

struct AttentionOfOne {
  AttentionRequest request;
  bool backward = false;
  std::uint64_t seed = 0;
  Schedule schedule = Schedule::parallel;
  Target target;
};

AttentionOfOne attention_of(const proto::Attention& scenario, const Target& device = host_target()) {
  const AttentionJob job = make_attention_job(scenario, device);
  require_backward(scenario);
  if (job.strategies.size() != 1) {
    throw InvalidInput(
        str("the scenario asks for ", job.strategies.size(),
            " strategies, and processes run one; name it: strategy: \"",
            scenario.strategies() == "all" ? "ring" : split(scenario.strategies(), ',').front(), "\""));
  }
  if (const auto refusal =
          refuse(job.problem, static_cast<int>(job.ranks.size()), job.strategies.front(), job.target))
    throw InvalidInput(refusal->reason);
  return {{job.problem, job.ranks, job.strategies.front(), job.backward, job.options},
          job.backward,
          job.seed,
          job.schedule,
          job.target};
}

class AttentionRank : public RankJob {
 public:
  AttentionRank(AttentionOfOne attention, Rank rank)
      : request_(std::move(attention.request)),
        target_(std::move(attention.target)),
        data_(request_.problem, attention.seed),
        shards_(data_, request_) {
    const std::vector<Rank>& ranks = request_.ranks;
    const bool member = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      if (pass == AttentionPass::backward && !attention.backward) continue;
      Plan plan = attention_plan(request_, pass, member ? rank : ranks.front(), target_);
      inputs_.push_back(plan.inputs);
      if (member) plans_.push_back(std::move(plan));
    }
  }

  Bindings bind(std::size_t pass) override { return shards_.bind(which(pass), plans_[pass], buffers_); }

  std::map<std::string, Digest> digests(std::size_t pass) const override {
    return AttentionShards::digests(request_.problem, plans_[pass], buffers_);
  }

  std::vector<std::string> findings() const override {
    std::vector<std::string> findings;
    if (plans_.empty()) return findings;
    const auto tolerances = attention_tolerances(data_, request_, plans_.size() > 1, target_);
    for (std::size_t pass = 0; pass < plans_.size(); ++pass) {
      for (const auto& [tensor, error] : shards_.compare(which(pass), plans_[pass], buffers_, tolerances)) {
        if (!error.holds()) findings.push_back(str(error.tensor, ": ", error.finding));
      }
    }
    return findings;
  }

 private:
  static AttentionPass which(std::size_t pass) {
    return pass == 0 ? AttentionPass::forward : AttentionPass::backward;
  }

  const AttentionRequest request_;
  const Target target_;
  const AttentionTestData data_;
  const AttentionShards shards_;
  RankBuffers buffers_;
};

[[noreturn]] void refuse_job(const proto::Scenario& scenario) {
  if (scenario.has_train())
    throw InvalidInput("the scenario trains a model; use cprun train with it, not cprun alone");
  throw InvalidInput(str("processes run a scenario of 'run', 'recurrence' or 'redistribute', not ",
                         scenario.job_case() == proto::Scenario::kPlan ? "of 'plan'" : "an empty one",
                         "; cpsim plan --emit attention writes one that they do"));
}

}  // namespace

int world_size_of(const proto::Scenario& scenario) {
  switch (scenario.job_case()) {
    case proto::Scenario::kRedistribute: {
      const RedistributeRequest request = make_request(scenario.redistribute());
      Rank last = 0;
      for (const Layout* layout : {&request.source, &request.target}) {
        for (const Rank rank : layout->mesh.ranks()) last = std::max(last, rank);
      }
      return last + 1;
    }
    case proto::Scenario::kRun: {
      const std::vector<Rank> ranks = attention_of(scenario.run()).request.ranks;
      return *std::max_element(ranks.begin(), ranks.end()) + 1;
    }
    case proto::Scenario::kRecurrence:
      return world_size_of(scenario.recurrence());
    default:
      refuse_job(scenario);
  }
}

RankMemory rank_memory(const proto::Scenario& scenario, Rank rank) {
  if (scenario.has_recurrence()) return rank_memory(scenario.recurrence(), rank);
  RankMemory memory;
  if (scenario.job_case() == proto::Scenario::kRedistribute) {
    const RedistributeRequest request = make_request(scenario.redistribute());
    const Gradient planned = plan_request(request);
    const Mesh &source = planned.redistribution.source.mesh, &target = planned.redistribution.target.mesh;
    if (source.contains(rank) || target.contains(rank))
      memory.plans =
          peak_bytes(lower_scaled(planned.redistribution, planned.scale, rank, request.device_target));
    return memory;
  }
  if (scenario.job_case() != proto::Scenario::kRun) refuse_job(scenario);
  const AttentionOfOne attention = attention_of(scenario.run());
  const AttentionRequest& request = attention.request;
  memory.inputs = test_input_bytes(request.problem);
  memory.results = test_data_bytes(request.problem, attention.backward) - memory.inputs;
  const bool member = std::find(request.ranks.begin(), request.ranks.end(), rank) != request.ranks.end();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    if (!member || (pass == AttentionPass::backward && !attention.backward)) continue;
    memory.plans += peak_bytes(attention_plan(request, pass, rank, attention.target));
  }
  return memory;
}

std::string& target_field(proto::Scenario& scenario) {
  switch (scenario.job_case()) {
    case proto::Scenario::kRedistribute:
      return *scenario.mutable_redistribute()->mutable_target();
    case proto::Scenario::kRun:
      return *scenario.mutable_run()->mutable_target();
    case proto::Scenario::kRecurrence:
      return *scenario.mutable_recurrence()->mutable_target();
    default:
      refuse_job(scenario);
  }
}

std::unique_ptr<RankJob> make_rank_job(const proto::Scenario& scenario, Rank rank, const Target& device) {
  switch (scenario.job_case()) {
    case proto::Scenario::kRedistribute:
      return std::make_unique<RedistributeRank>(make_request(scenario.redistribute(), device), rank);
    case proto::Scenario::kRun:
      return std::make_unique<AttentionRank>(attention_of(scenario.run(), device), rank);
    case proto::Scenario::kRecurrence:
      return make_rank_job(scenario.recurrence(), rank, device);
    default:
      refuse_job(scenario);
  }
}

std::vector<RankTrace> simulate(const proto::Scenario& scenario, const Target& device) {
  if (scenario.has_recurrence()) return simulate(scenario.recurrence(), device);
  if (scenario.job_case() == proto::Scenario::kRedistribute) {
    const RedistributeRequest request = make_request(scenario.redistribute(), device);
    RedistributeRunOptions options;
    options.schedule = request.schedule, options.seed = request.seed, options.digests = true;
    options.target = request.device_target;
    options.memory_limit_bytes = free_memory_bytes();
    const Gradient planned = plan_request(request);
    options.scale = planned.scale;
    return run_redistribution(planned.redistribution, options).traces;
  }
  if (scenario.job_case() != proto::Scenario::kRun) refuse_job(scenario);
  const AttentionOfOne attention = attention_of(scenario.run(), device);
  AttentionRunOptions options;
  options.backward = attention.backward, options.schedule = attention.schedule, options.seed = attention.seed;
  options.target = attention.target;
  options.memory_limit_bytes = free_memory_bytes();
  const AttentionTestData data(attention.request.problem, attention.seed);
  AttentionRun run = run_attention(data, attention.request, options);
  require_exact(run.verdicts, run.errors);
  return std::move(run.traces);
}

}  // namespace cp::sim
