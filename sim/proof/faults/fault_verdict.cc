#include "sim/proof/faults/fault_verdict.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "shared/base/text.h"
#include "sim/proof/run/attention_run.h"
#include "sim/proof/run/redistribute_run.h"

namespace cp::sim {
namespace {

using Kind = FaultVerdict::Kind;

// Plans with the programs' faults in them, and which faults those are.
class DamagedPlans {
 public:
  explicit DamagedPlans(std::span<const InjectedFault> faults)
      : faults_(faults), took_place_(faults.size()) {}

  // Replaces plans of a pass. `before`: right plans of the passes before it, whose collectives count too.
  std::vector<Plan> damage(std::span<const Plan> right, std::span<const Plan> before,
                           std::span<const Plan> others) {
    std::vector<Plan> plans(right.begin(), right.end());
    for (std::size_t i = 0; i < faults_.size(); ++i) {
      InjectedFault fault = faults_[i];
      if (!is_of_program(fault.kind) || took_place_[i]) continue;
      const auto earlier = std::ranges::find(before, fault.rank, &Plan::self);
      if (earlier != before.end()) fault.collective -= num_collectives(*earlier);
      const auto other = std::ranges::find(others, fault.rank, &Plan::self);
      auto damaged = damage_program(right, fault, other == others.end() ? nullptr : &*other);
      if (!damaged) continue;
      *std::ranges::find(plans, fault.rank, &Plan::self) = std::move(*damaged);
      took_place_[i] = true;
    }
    return plans;
  }

  bool any() const { return std::ranges::find(took_place_, true) != took_place_.end(); }

  // Those that the fabric is to do.
  std::vector<InjectedFault> of_machines() const {
    std::vector<InjectedFault> faults(faults_.begin(), faults_.end());
    for (InjectedFault& fault : faults) {
      if (is_of_program(fault.kind)) fault.kind = FaultKind::none;
    }
    return faults;
  }

  void tell(const std::vector<bool>& injected, std::vector<bool>& took_place) const {
    took_place = took_place_;
    for (std::size_t i = 0; i < injected.size(); ++i) took_place[i] = took_place[i] || injected[i];
  }

 private:
  std::span<const InjectedFault> faults_;
  std::vector<bool> took_place_;
};

// Tells the faults at the end of a run, however it ends.
class TellsAtEnd {
 public:
  TellsAtEnd(const DamagedPlans& plans, const std::vector<bool>& injected, std::vector<bool>& took_place)
      : plans_(plans), injected_(injected), took_place_(took_place) {}
  ~TellsAtEnd() { plans_.tell(injected_, took_place_); }
  TellsAtEnd(const TellsAtEnd&) = delete;
  TellsAtEnd& operator=(const TellsAtEnd&) = delete;

 private:
  const DamagedPlans& plans_;
  const std::vector<bool>& injected_;
  std::vector<bool>& took_place_;
};

template <class Options>
void set_options(Options& options, const FaultRunOptions& from, const DamagedPlans& plans,
                 std::vector<bool>& injected) {
  options.schedule = from.schedule, options.seed = from.seed, options.order = from.order,
  options.checksums = from.checksums;
  options.faults = plans.of_machines();
  options.check_plans = !plans.any();
  options.compare_digests = from.compare_digests;
  options.injected = &injected;
}

}  // namespace

std::string_view name(FaultVerdict::Kind kind) {
  constexpr std::array<std::string_view, 7> kNames = {"no_fault", "tolerated",     "reported",   "silent",
                                                      "unnamed",  "wrong_culprit", "false_alarm"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool names_culprit(const InjectedFault& fault, ErrorKind error, const ErrorFacts& facts) {
  const bool named = std::ranges::find(facts.culprits, fault.rank) != facts.culprits.end();
  if (is_of_transfer(fault.kind))
    return error == ErrorKind::check_failed && facts.sender == fault.rank && facts.receiver == fault.peer;
  if (fault.kind == FaultKind::dead_rank)
    return error == ErrorKind::peer_lost && facts.culprits == std::vector{fault.rank};
  if (!is_of_program(fault.kind)) return false;
  const bool right_kind = error == ErrorKind::collective_mismatch || error == ErrorKind::deadlock;
  return right_kind && named && facts.culprits.size() == (facts.is_tie ? 2u : 1u);
}

FaultVerdict judge_faults(std::span<const InjectedFault> faults,
                          const std::function<void(std::vector<bool>& took_place)>& run) {
  std::vector<bool> took_place(faults.size());
  FaultVerdict verdict;
  bool failed = false;
  try {
    run(took_place);
  } catch (const Error& error) {
    failed = true;
    verdict.error = error.kind(), verdict.message = error.what(), verdict.facts = error.facts();
  }
  std::vector<InjectedFault> real;  // those that took place
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (took_place[i]) real.push_back(faults[i]);
  }
  const auto may_pass = [](const InjectedFault& fault) {
    return is_tolerated(fault.kind) || fault.kind == FaultKind::swap_collectives;
  };
  const auto must_pass = [](const InjectedFault& fault) { return is_tolerated(fault.kind); };
  if (!failed) {
    verdict.kind = real.empty()                          ? Kind::no_fault
                   : std::ranges::all_of(real, may_pass) ? Kind::tolerated
                                                         : Kind::silent;
    if (verdict.kind == Kind::silent) verdict.message = str("nothing was said of ", to_string(real.front()));
    return verdict;
  }
  const auto is_named = [&](const InjectedFault& fault) {
    return names_culprit(fault, *verdict.error, verdict.facts);
  };
  if (std::ranges::all_of(real, must_pass)) {
    verdict.kind = Kind::false_alarm;
  } else if (std::ranges::any_of(real, is_named)) {
    verdict.kind = Kind::reported;
  } else {
    verdict.kind = verdict.facts.culprits.empty() ? Kind::unnamed : Kind::wrong_culprit;
  }
  return verdict;
}

FaultVerdict judge_redistribution(const Redistribution& redistribution, std::span<const Plan> plans,
                                  std::span<const InjectedFault> faults, const FaultRunOptions& options,
                                  std::span<const Plan> others) {
  return judge_faults(faults, [&](std::vector<bool>& took_place) {
    DamagedPlans damaged(faults);
    const std::vector<Plan> given = damaged.damage(plans, {}, others);
    std::vector<bool> injected;
    const TellsAtEnd tells(damaged, injected, took_place);
    RedistributeRunOptions run;
    set_options(run, options, damaged, injected);
    run.scale = options.scale;
    run_redistribution(redistribution, given, run);
  });
}

FaultVerdict judge_attention(const AttentionTestData& data, const AttentionRequest& request,
                             std::span<const Plan> forward, std::span<const Plan> backward,
                             std::span<const InjectedFault> faults, const FaultRunOptions& options,
                             std::span<const Plan> others) {
  return judge_faults(faults, [&](std::vector<bool>& took_place) {
    DamagedPlans damaged(faults);
    const std::vector<Plan> given_forward = damaged.damage(forward, {}, others);
    const std::vector<Plan> given_backward = damaged.damage(backward, forward, {});
    std::vector<bool> injected;
    const TellsAtEnd tells(damaged, injected, took_place);
    AttentionRunOptions run;
    set_options(run, options, damaged, injected);
    run.backward = !backward.empty();
    const AttentionRun result = run_attention(data, request, given_forward, given_backward, run);
    for (const Verdict& verdict : result.verdicts) {
      if (!verdict.holds) throw CheckFailure(str(verdict.name, ": ", verdict.finding));
    }
    for (const TensorError& error : result.errors) {
      if (!error.holds()) throw CheckFailure(str(error.tensor, ": ", error.finding));
    }
  });
}

}  // namespace cp::sim
