#include "sim/proof/run/attention_run_memory.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/cores.h"

namespace cp::sim {
namespace {

// Estimated: what a rank touches of its stack, its queues, and its trace.
constexpr double kThreadBytes = 256 << 10;

std::int64_t whole(double bytes) {
  // Sizes that no machine has must not overflow an int64.
  constexpr double kMost = 0x1p62;
  return static_cast<std::int64_t>(std::min(bytes, kMost));
}

double count(std::int64_t number) { return static_cast<double>(number); }

// Latent rows and their weight.
double latent_values(const AttentionProblem& problem) {
  if (!problem.has_latent()) return 0;
  return count(problem.batch) * count(problem.kv_len) * count(problem.latent.dim()) +
         count(problem.kv_heads) * count(problem.up_rows()) * count(problem.latent.rank);
}

}  // namespace

std::int64_t test_input_bytes(const AttentionProblem& problem) {
  const double queries = count(problem.batch) * count(problem.q_heads) * count(problem.q_len);
  const double keys = count(problem.batch) * count(problem.kv_heads) * count(problem.kv_len);
  const double d = count(problem.head_dim), dv = count(problem.v_head_dim);
  return whole((queries * (d + dv) + keys * (d + dv) + latent_values(problem)) * sizeof(double));
}

std::int64_t test_data_bytes(const AttentionProblem& problem, bool backward) {
  const double queries = count(problem.batch) * count(problem.q_heads) * count(problem.q_len);
  const double keys = count(problem.batch) * count(problem.kv_heads) * count(problem.kv_len);
  const double d = count(problem.head_dim), dv = count(problem.v_head_dim);
  // q, dout, out, lse; k, v.
  double values = queries * (d + 2 * dv + 1) + keys * (d + dv) + latent_values(problem);
  // dq and the sum of its row; dk, dv and the three sums of their rows.
  if (backward) values += queries * (d + 1) + keys * (d + dv + 3);
  // dlatent, and what each row of queries, and each query head, adds to dkv_up.
  if (backward && problem.has_latent()) {
    values += latent_values(problem) + 2 * queries * count(problem.latent.rank) +
              keys * count(problem.heads_per_kv()) * (d + dv);
  }
  return whole(values * sizeof(double));
}

std::int64_t ranks_bytes(std::span<const Plan> forward, std::span<const Plan> backward) {
  double bytes = 0;
  for (std::size_t i = 0; i < forward.size(); ++i) {
    bytes += kThreadBytes + count(peak_bytes(forward[i]));
    if (!backward.empty()) bytes += count(peak_bytes(backward[i]));
  }
  return whole(bytes);
}

std::int64_t planning_bytes(const AttentionRequest& request, bool records) {
  // The bytes of a step in a plan, and of the count of a peer in a record. Measured at 128 to 1,024 ranks,
  // and good to a factor of two.
  constexpr double kStepBytes = 4096, kPeerBytes = 88;
  const Strategy& strategy = request.strategy;
  if (facts(strategy.core).rotates == Rotates::nothing) return 0;
  const double ranks = static_cast<double>(request.ranks.size()),
               steps = ranks * ranks / std::max(1, strategy.ulysses_degree);
  return whole(steps *
               (kStepBytes + (records ? kPeerBytes * ranks / std::max(1, strategy.ulysses_degree) : 0)));
}

void require_planning_memory(const AttentionRequest& request, bool records, std::int64_t limit) {
  const std::int64_t needed = planning_bytes(request, records);
  if (needed <= limit) return;
  AttentionRequest fewer = request;
  while (fewer.ranks.size() > 1 && planning_bytes(fewer, records) > limit)
    fewer.ranks.resize(fewer.ranks.size() * 15 / 16);
  const std::string_view what = records ? "planning and recording" : "planning";
  throw InvalidInput(str(what, " ", request.ranks.size(),
                         " ranks, each of which has a step with each other, takes about ",
                         human_bytes(needed), ", and ", human_bytes(limit), " are free; use ",
                         fewer.ranks.size(), " ranks or fewer, or --strategy all_gather"));
}

void require_memory(const AttentionProblem& problem, std::string_view what, std::int64_t needed,
                    std::int64_t limit) {
  if (needed <= limit) return;
  const double share = count(limit) / count(needed);
  const auto fits = static_cast<std::int64_t>(share * count(problem.q_len));
  throw InvalidInput(str(what, " of ", to_string(problem), " need ", human_bytes(needed), ", and ",
                         human_bytes(limit), " are free; use --seq-len ", std::max<std::int64_t>(fits, 1),
                         " or fewer heads"));
}

}  // namespace cp::sim
