#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/check.h"
#include "sim/fuzz/conditions.h"
#include "sim/fuzz/judge.h"
#include "sim/fuzz/laws.h"
#include "sim/proof/faults/fault_verdict.h"
#include "sim/proof/run/attention_run.h"
#include "sim/scenario/attention_request.h"

namespace cp::sim {
namespace {

// The largest case. Chosen: the reference is quadratic in the length, so the pairs of queries and keys over
// all batches and heads are limited; and every rank is a thread.
constexpr std::int64_t kMostCells = std::int64_t{1} << 23;
constexpr int kMostAttentionRanks = 64;

void require_small(const AttentionJob& job) {
  const AttentionProblem& problem = job.problem;
  const double cells = static_cast<double>(problem.batch) * static_cast<double>(problem.q_heads) *
                       static_cast<double>(problem.q_len) * static_cast<double>(problem.kv_len);
  if (cells <= static_cast<double>(kMostCells) && static_cast<int>(job.ranks.size()) <= kMostAttentionRanks)
    return;
  throw InvalidInput(str("the case has ", cells, " pairs of queries and keys on ", job.ranks.size(),
                         " ranks, of ", kMostCells, " on ", kMostAttentionRanks,
                         " at most; run larger ones with cpsim run"));
}

// The rules of strategy.h, told apart from how refuse() reads them.
void require_legal(const AttentionJob& job, const Strategy& strategy) {
  const int cp = static_cast<int>(job.ranks.size());
  const auto divides = [](int part, int whole) { return part >= 1 && whole % part == 0; };
  if (!divides(strategy.ulysses_degree, cp) || strategy.ulysses_degree > job.problem.q_heads) {
    throw InvalidInput(str("ulysses_degree ", strategy.ulysses_degree, " must divide ", cp,
                           " ranks and be at most the ", job.problem.q_heads, " query heads"));
  }
  if (!divides(strategy.inner_ring, cp / strategy.ulysses_degree)) {
    throw InvalidInput(str("inner_ring ", strategy.inner_ring, " must divide the ",
                           cp / strategy.ulysses_degree, " ranks of the ring"));
  }
  if (strategy.slots != 2 && strategy.slots != 3)
    throw InvalidInput(str("slots ", strategy.slots, " must be 2 or 3"));
  if (strategy.pieces < 1 || strategy.pieces > most_pieces(job.problem, cp, strategy)) {
    throw InvalidInput(str("pieces ", strategy.pieces, " must be 1 to ",
                           most_pieces(job.problem, cp, strategy), " for this strategy"));
  }
  const bool rows = strategy.keys == Strategy::Keys::latent;
  if (strategy.keys != Strategy::Keys::fewer_bytes && !job.problem.has_latent())
    throw InvalidInput(str("keys ", name(strategy.keys), " needs latent rows"));
  if (rows && (strategy.pieces > 1 || (strategy.core == Core::pass_q && strategy.ulysses_degree == 1)))
    throw InvalidInput("latent rows have no heads to cut into pieces, and stay where queries travel");
  if (!job.problem.options.empty()) throw InvalidInput("the case asks for what no kernel has; leave it out");
}

// Named as what does not hold: "mask cells", "bytes", "traces", "peak memory", "out", "dq", ...
void require_holds(const AttentionRun& run, const Trial& trial) {
  for (const Verdict& verdict : run.verdicts) trial.require(verdict.holds, verdict.name, verdict.finding);
  for (const TensorError& error : run.errors) {
    trial.require(error.holds(), error.tensor, error.tensor, " is off by ", error.max_error, ", more than ",
                  error.tolerance, ": ", error.finding);
  }
}

struct Passes {
  const std::vector<Plan>&forward, &backward;
};

// A fault is tolerated, or reported with whoever did it.
void run_with_faults(const AttentionRequest& request, const AttentionTestData& data, const Passes& passes,
                     Trial& trial) {
  FaultRunOptions options;
  options.seed = data.seed();
  const std::vector<InjectedFault> faults = faults_of(trial.fuzz_case());
  const FaultVerdict verdict =
      judge_attention(data, request, passes.forward, passes.backward, faults, options);
  trial.require(verdict.holds(), "fault", name(verdict.kind), ": ", to_string(faults.front()), ": ",
                verdict.message);
  trial.hasher().add(name(verdict.kind));
}

// Sums are added up in the order of the plan, whatever the order of the ranks: results have the same bits.
// The more pairs of queries and keys a run computes, the fewer orders are taken, so that a case stays below a
// second.
void explore(const AttentionProblem& problem,
             const std::function<AttentionRun(const AttentionRunOptions&)>& run, AttentionRunOptions options,
             const Trial& trial) {
  // Of the runs in all orders together. Chosen: a small case runs in all kMostOrders, the largest in two.
  constexpr std::int64_t kMostPairs = 1 << 19;
  const std::int64_t pairs = problem.batch * problem.q_heads * problem.q_len * problem.kv_len;
  explore_all_orders(
      [&](const BatonOrder& order) {
        options.order = order;
        const AttentionRun it = run(options);
        Hasher hasher;
        for (const auto* values :
             {&it.results.out, &it.results.lse, &it.results.dq, &it.results.dk, &it.results.dv})
          hasher.add(std::as_bytes(std::span(*values)));
        return to_string(hasher.digest());
      },
      trial, std::clamp<std::int64_t>(kMostPairs / std::max<std::int64_t>(1, pairs), 2, kMostOrders));
}

}  // namespace

void judge_attention(const proto::Attention& job, Trial& trial) {
  const AttentionJob parsed = make_attention_job(job);
  if (parsed.strategies.size() != 1)
    throw InvalidInput("a case has one strategy; give it as strategy: \"ring\"");
  require_backward(job);
  require_small(parsed);
  const Strategy& strategy = parsed.strategies.front();
  require_legal(parsed, strategy);
  const auto refusal = refuse(parsed.problem, static_cast<int>(parsed.ranks.size()), strategy, parsed.target);
  if (refusal)
    throw trial.failure("refused", str("the rules allow it, and it is refused: ", refusal->reason));

  const AttentionRequest request{parsed.problem, parsed.ranks, strategy, parsed.backward, parsed.options};
  const auto plans = [&](AttentionPass pass) {
    return trial.property("planning", [&] { return attention_plans(request, pass, parsed.target); });
  };
  std::vector<Plan> forward = plans(AttentionPass::forward);
  std::vector<Plan> backward = parsed.backward ? plans(AttentionPass::backward) : std::vector<Plan>();
  // A planted bug comes before the digest, so that a mutant has another one than the case without it.
  plant(trial.fuzz_case(), false, forward);
  plant(trial.fuzz_case(), true, backward);
  for (const std::vector<Plan>* pass : {&forward, &backward}) {
    for (const Plan& plan : *pass) trial.hasher().add(digest(plan));
  }
  // What the rules say of the scale where none is given, apart from how the problem reads them.
  AttentionProblem stated = parsed.problem;
  stated.softmax_scale = stated.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(stated.head_dim)));
  const AttentionTestData data(stated, parsed.seed);
  AttentionRunOptions options;
  options.backward = parsed.backward;
  options.target = parsed.target;
  options.keep_results = true;
  const RunOrder order = run_order(trial.fuzz_case().order(), backward.empty() ? forward : backward);
  options.schedule = order.schedule;
  options.order = order.order;
  options.seed = parsed.seed + order.seed;
  if (!trial.fuzz_case().faults().empty()) return run_with_faults(request, data, {forward, backward}, trial);
  const auto run_once = [&](const AttentionRunOptions& how) {
    return run_attention(data, request, forward, backward, how);
  };
  const AttentionRun run = trial.property("run", [&] { return run_once(options); });
  trial.ran();
  add_traces(run.traces, trial.hasher());
  if (wants_all_orders(trial.fuzz_case().order(), forward)) explore(parsed.problem, run_once, options, trial);
  if (trial.asks("progress")) {
    check_progress_rules(forward, trial);
    if (!backward.empty()) check_progress_rules(backward, trial);
  }
  require_holds(run, trial);
  check_attention_laws(request, data, {forward, backward, options, run}, trial);
}

}  // namespace cp::sim
