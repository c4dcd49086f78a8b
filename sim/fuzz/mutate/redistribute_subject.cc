#include <algorithm>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/scaled.h"
#include "sim/fabric/fabric.h"
#include "sim/fuzz/mutate/subjects.h"
#include "sim/proof/run/redistribute_run.h"
#include "sim/proof/run/redistribute_shards.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::sim {
namespace {

// "all_gather", or "all_gather+exchange": the kinds of moves, in order, each once.
std::string moves_of(const Redistribution& redistribution) {
  std::vector<std::string_view> kinds;
  for (const RedistributionStep& step : redistribution.steps) {
    const std::string_view kind = name(step.move.kind);
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds.empty() ? "nothing" : kinds.size() > 1 ? "chain" : std::string(kinds.front());
}

class RedistributeSubject final : public Subject {
 public:
  explicit RedistributeSubject(const RedistributeRequest& request)
      : gradient_(plan_request(request)),
        target_(request.device_target.name),
        plans_(lower_all_scaled(gradient_.redistribution, gradient_.scale, request.device_target)),
        limit_bytes_(peak_limit_bytes(gradient_.redistribution, plans_)),
        wire_bytes_(planned_wire_bytes(gradient_.redistribution)),
        moves_(moves_of(gradient_.redistribution)) {
    const Rank last = std::max_element(plans_.begin(), plans_.end(), [](const Plan& a, const Plan& b) {
                        return a.self < b.self;
                      })->self;
    if (last >= kMaxRunRanks) {
      throw InvalidInput(str("a run has one thread for each rank up to the last, and rank ", last,
                             " is beyond the ", kMaxRunRanks, " that are allowed; number the ranks from 0"));
    }
    world_size_ = last + 1;
  }

  std::string strategy(bool) const override { return str("redistribute ", moves_); }
  std::string target() const override { return target_; }
  const std::vector<Plan>& plans(bool backward) const override {
    static const std::vector<Plan> none;
    return backward ? none : plans_;
  }

  MutantJudgement judge(bool, const std::vector<Plan>& plans, const TrialOptions& options) override {
    if (const auto complaint =
            complaint_of([&] { check(plans, {.peak_bytes = limit_bytes_, .arena_bytes = {}}); }))
      return {Outcome::check, *complaint};
    std::string difference;
    for (int schedule = 0; schedule < options.schedules; ++schedule) {
      const auto seed = static_cast<std::uint64_t>(schedule);
      const RedistributeShards shards(gradient_.redistribution, seed, gradient_.scale);
      const Run run = this->run(plans, shards, seed);
      if (run.error && asked(options, Outcome::fabric)) return {Outcome::fabric, *run.error};
      if (run.ledger && asked(options, Outcome::ledger)) return {Outcome::ledger, *run.ledger};
      const std::optional<std::string> wrong = compare(shards, run.buffers);
      if (wrong && asked(options, Outcome::result)) return {Outcome::result, *wrong};
      if (difference.empty()) difference = difference_from_right(shards, seed, run.buffers);
    }
    if (difference.empty()) return {Outcome::equivalent, ""};
    return {Outcome::survivor, difference};
  }

 private:
  using Buffers = std::map<Rank, RedistributeBuffers>;
  struct Run {
    std::optional<std::string> error, ledger;
    Buffers buffers;
  };

  Run run(const std::vector<Plan>& plans, const RedistributeShards& shards, std::uint64_t seed) const {
    Run result;
    std::vector<const Plan*> plan_of(static_cast<std::size_t>(world_size_));
    for (const Plan& plan : plans) {
      plan_of[static_cast<std::size_t>(plan.self)] = &plan;
      result.buffers.emplace(plan.self, shards.make(plan.self));
    }
    Fabric fabric(world_size_, fabric_options(seed));
    result.error = complaint_of([&] {
      fabric.run([&](Rank rank, Device& device) {
        const Plan* plan = plan_of[static_cast<std::size_t>(rank)];
        if (plan == nullptr) return;
        execute(*plan, device, result.buffers.at(rank).bindings(),
                &fabric.traces()[static_cast<std::size_t>(rank)]);
      });
    });
    if (result.error) return result;
    const std::vector<RankTrace>& traces = fabric.traces();
    result.ledger = first_difference(traces, traces);
    if (const std::int64_t bytes = wire_bytes(traces); !result.ledger && bytes != wire_bytes_)
      result.ledger = str("the ranks received ", bytes, " bytes, where the planner counted ", wire_bytes_);
    return result;
  }

  std::optional<std::string> compare(const RedistributeShards& shards, const Buffers& buffers) const {
    std::vector<RedistributeMismatch> mismatches;
    for (const auto& [rank, own] : buffers) {
      if (own.target_bytes == 0) continue;
      const std::vector<Rank> partners = shards.partners_of(rank);
      if (partners.front() != rank) continue;
      std::vector<const RedistributeBuffers*> of_partners;
      for (const Rank partner : partners) of_partners.push_back(&buffers.at(partner));
      if (const auto mismatch = shards.compare(rank, of_partners)) mismatches.push_back(*mismatch);
    }
    if (mismatches.empty()) return std::nullopt;
    return shards.explain(mismatches);
  }

  // Empty: there is none. The right plans run once for each seed.
  std::string difference_from_right(const RedistributeShards& shards, std::uint64_t seed,
                                    const Buffers& buffers) {
    const auto [right, added] = right_.try_emplace(seed);
    if (added) right->second = run(plans_, shards, seed).buffers;
    for (const auto& [rank, own] : buffers) {
      const std::byte* expected = right->second.at(rank).target.get();
      const auto [found, where] =
          std::mismatch(own.target.get(), own.target.get() + own.target_bytes, expected);
      if (found != own.target.get() + own.target_bytes) {
        return str("byte ", where - expected, " of rank ", rank, "'s target is ", static_cast<int>(*found),
                   ", with the right plans ", static_cast<int>(*where), " (data of seed ", seed, ")");
      }
    }
    return "";
  }

  const Gradient gradient_;
  const std::string target_;
  const std::vector<Plan> plans_;
  const std::int64_t limit_bytes_, wire_bytes_;
  const std::string moves_;
  int world_size_ = 0;
  std::map<std::uint64_t, Buffers> right_;  // by seed
};

}  // namespace

std::unique_ptr<Subject> make_redistribute_subject(const proto::Redistribute& job) {
  return std::make_unique<RedistributeSubject>(make_request(job));
}

}  // namespace cp::sim
