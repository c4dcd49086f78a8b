#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "sim/fuzz/conditions.h"
#include "sim/fuzz/fields_law.h"
#include "sim/fuzz/judge.h"
#include "sim/fuzz/mutants_law.h"
#include "sim/fuzz/timeline_law.h"
#include "sim/proof/run/recurrence_run.h"
#include "sim/scenario/recurrence_request.h"

namespace cp::sim {
namespace {

// The largest case: elements of states over all rows, since each row touches them all; and every rank is a
// thread. Chosen so that a case takes well below a second.
constexpr std::int64_t kMostTouched = std::int64_t{1} << 24;
constexpr int kMostScanRanks = 64;

void require_small(const RecurrenceJob& job) {
  const double touched =
      static_cast<double>(job.problem.state_numel()) * static_cast<double>(job.problem.seq_len);
  if (touched <= static_cast<double>(kMostTouched) && static_cast<int>(job.ranks.size()) <= kMostScanRanks)
    return;
  throw InvalidInput(str("the case touches ", touched, " elements of states on ", job.ranks.size(),
                         " ranks, of ", kMostTouched, " on ", kMostScanRanks,
                         " at most; run larger ones with cpsim run"));
}

// All results, as they are: sums are added up in the order of the plan, whatever the order of the ranks.
std::string bits_of(const RecurrenceRun& run) {
  Hasher hasher;
  for (const auto& [name, values] : run.results)
    hasher.add(name).add(std::as_bytes(std::span<const double>(values)));
  return to_string(hasher.digest());
}

class RecurrenceJudge {
 public:
  RecurrenceJudge(const RecurrenceJob& job, Trial& trial)
      : job_(job),
        trial_(trial),
        request_{job.problem, job.ranks, job.strategies.front(), job.backward},
        data_(job.problem, job.seed) {}

  void judge() {
    forward_ = plans(RecurrencePass::forward);
    if (job_.backward) backward_ = plans(RecurrencePass::backward);
    plant(trial_.fuzz_case(), false, forward_);
    plant(trial_.fuzz_case(), true, backward_);
    for (const std::vector<Plan>* pass : {&forward_, &backward_}) {
      for (const Plan& plan : *pass) trial_.hasher().add(digest(plan));
    }
    options_.backward = job_.backward, options_.target = job_.target, options_.keep_results = true;
    const RunOrder order = run_order(trial_.fuzz_case().order(), backward_.empty() ? forward_ : backward_);
    options_.schedule = order.schedule, options_.order = order.order;
    options_.seed = job_.seed + order.seed;
    const RecurrenceRun run = trial_.property(
        "run", [&] { return run_recurrence(data_, request_, forward_, backward_, options_); });
    trial_.ran();
    add_traces(run.traces, trial_.hasher());
    for (const Verdict& verdict : run.verdicts) trial_.require(verdict.holds, verdict.name, verdict.finding);
    for (const TensorError& error : run.errors) {
      trial_.require(error.holds(), error.tensor, error.tensor, " is off by ", error.max_error,
                     ", more than ", error.tolerance, ": ", error.finding);
    }
    if (wants_all_orders(trial_.fuzz_case().order(), forward_)) orders();
    laws(run);
  }

 private:
  std::vector<Plan> plans(RecurrencePass pass) const {
    return trial_.property("planning", [&] { return recurrence_plans(request_, pass, job_.target); });
  }

  void orders() const {
    explore_all_orders(
        [&](const BatonOrder& order) {
          RecurrenceRunOptions options = options_;
          options.order = order;
          return bits_of(run_recurrence(data_, request_, forward_, backward_, options));
        },
        trial_);
  }

  void laws(const RecurrenceRun& run) const {
    if (trial_.asks("again")) again(run);
    if (trial_.asks("texts")) {
      check_texts(forward_.front(), trial_);
      if (!backward_.empty()) check_texts(backward_.back(), trial_);
    }
    for (const std::vector<Plan>* pass : {&forward_, &backward_}) {
      if (pass->empty()) continue;
      if (trial_.asks("progress")) check_progress_rules(*pass, trial_);
      if (trial_.asks("timeline")) check_timeline(*pass, "dgx-h100", trial_);
    }
    if (trial_.asks("mutants")) mutants();
  }

  // The same plans, one by one, and the same bits in another order of the ranks.
  void again(const RecurrenceRun& run) const {
    for (const Plan& plan : forward_) {
      if (trial_.fuzz_case().has_mutation()) break;
      const Plan one = recurrence_plan(request_, RecurrencePass::forward, plan.self, job_.target);
      trial_.require(one == plan, "again", "rank ", plan.self, " alone has another plan");
    }
    RecurrenceRunOptions options = options_;
    options.schedule = Schedule::baton, options.seed = options_.seed + 17;
    const std::string bits = bits_of(run_recurrence(data_, request_, forward_, backward_, options));
    trial_.require(bits == bits_of(run), "again", "another order of the ranks gives other bits");
  }

  void mutants() const {
    const auto run_in = [&](const std::vector<Plan>& plans, const BatonOrder& order) {
      RecurrenceRunOptions options = options_;
      options.backward = false, options.schedule = Schedule::baton, options.order = order;
      return bits_of(run_recurrence(data_, request_, plans, {}, options));
    };
    check_mutants(forward_, job_.seed, run_in, run_in(forward_, {}), trial_);
  }

  const RecurrenceJob& job_;
  Trial& trial_;
  const RecurrenceRequest request_;
  const RecurrenceTestData data_;
  RecurrenceRunOptions options_;
  std::vector<Plan> forward_, backward_;
};

}  // namespace

void judge_recurrence(const proto::Recurrence& scenario, Trial& trial) {
  const RecurrenceJob job = make_recurrence_job(scenario);
  if (job.strategies.size() != 1)
    throw InvalidInput("a case has one strategy; give it as strategy: \"all_gather\"");
  if (!trial.fuzz_case().faults().empty())
    throw InvalidInput(
        "faults are tried with attention and redistributions, which send the same kinds of "
        "messages; leave them out");
  require_small(job);
  const auto refusal =
      refuse(job.problem, static_cast<int>(job.ranks.size()), job.strategies.front(), job.target);
  if (refusal)
    throw trial.failure("refused", str("the rules allow it, and it is refused: ", refusal->reason));
  RecurrenceJudge(job, trial).judge();
}

}  // namespace cp::sim
