#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/check.h"
#include "sim/fuzz/judge.h"
#include "sim/fuzz/laws.h"
#include "sim/run/attention_run.h"
#include "sim/scenario/attention_request.h"

namespace cp::sim {
namespace {

// What a case may take: the reference is quadratic in the length, and every rank is a thread.
constexpr std::int64_t kMostCells = std::int64_t{1} << 23;
constexpr int kMostRanks = 64;

void require_small(const AttentionJob& job) {
  const AttentionProblem& problem = job.problem;
  const double cells = static_cast<double>(problem.batch) * static_cast<double>(problem.q_heads) *
                       static_cast<double>(problem.q_len) * static_cast<double>(problem.kv_len);
  if (cells <= static_cast<double>(kMostCells) && static_cast<int>(job.ranks.size()) <= kMostRanks) return;
  throw InvalidInput(str("the case has ", cells, " pairs of queries and keys on ", job.ranks.size(),
                         " ranks, of ", kMostCells, " on ", kMostRanks,
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
  const std::vector<Plan> forward = plans(AttentionPass::forward);
  const std::vector<Plan> backward = parsed.backward ? plans(AttentionPass::backward) : std::vector<Plan>();
  for (const std::vector<Plan>* pass : {&forward, &backward}) {
    for (const Plan& plan : *pass) trial.hasher().add(digest(plan));
  }
  const AttentionTestData data(parsed.problem, parsed.seed);
  AttentionRunOptions options;
  options.backward = parsed.backward;
  options.target = parsed.target;
  options.seed = parsed.seed;
  options.keep_results = true;
  if (trial.fuzz_case().order().kind() != proto::Order::parallel) options.schedule = Schedule::baton;
  const AttentionRun run =
      trial.property("run", [&] { return run_attention(data, request, forward, backward, options); });
  trial.ran();
  trial.add(run.traces);
  require_holds(run, trial);
  check_attention_laws(request, data, {forward, backward, options, run}, trial);
}

}  // namespace cp::sim
