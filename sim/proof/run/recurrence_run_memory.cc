#include "sim/proof/run/recurrence_run_memory.h"

#include <algorithm>
#include <cmath>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/base/parallel_for.h"

namespace cp::sim {
namespace {

// Of numbers in float64, for each row of all batch entries. Sizes that no machine has must not overflow.
std::int64_t float64_bytes(const RecurrenceProblem& problem, double numbers_of_row) {
  constexpr double kMost = 0x1p62;
  const double rows = static_cast<double>(problem.batch) * static_cast<double>(problem.seq_len);
  return static_cast<std::int64_t>(std::min(rows * numbers_of_row * sizeof(double), kMost));
}
double keys_of_row(const RecurrenceProblem& problem) {
  return static_cast<double>(problem.key_heads) * static_cast<double>(problem.key_dim);
}
double values_of_row(const RecurrenceProblem& problem) {
  return static_cast<double>(problem.value_heads) * static_cast<double>(problem.value_dim);
}

}  // namespace

// q, k, v, dout, log_decay and beta.
std::int64_t test_input_bytes(const RecurrenceProblem& problem) {
  return float64_bytes(problem, 2 * (keys_of_row(problem) + values_of_row(problem) +
                                     static_cast<double>(problem.value_heads)));
}

std::int64_t test_data_bytes(const RecurrenceProblem& problem, bool backward) {
  // out, what is written, and norms of states; then the gradients, that of what is written, and norms.
  double results = 3 * values_of_row(problem);
  if (backward)
    results +=
        2 * keys_of_row(problem) + 3 * values_of_row(problem) + 2 * static_cast<double>(problem.value_heads);
  // What the reference keeps of a head's states, on each core: forward the state at hand.
  const double kept = backward ? 2 * std::sqrt(static_cast<double>(problem.seq_len)) : 1,
               states = num_cores() * kept * static_cast<double>(problem.key_dim) *
                        static_cast<double>(problem.value_dim);
  results += states / (static_cast<double>(problem.batch) * static_cast<double>(problem.seq_len));
  const std::int64_t inputs = test_input_bytes(problem), more = float64_bytes(problem, results);
  return inputs + more;  // either is at most 2^62
}

std::int64_t ranks_state_bytes(std::span<const Plan> forward, std::span<const Plan> backward) {
  std::int64_t bytes = 0;
  for (const std::span<const Plan> pass : {forward, backward}) {
    for (const Plan& plan : pass) bytes += peak_bytes(plan);
  }
  return bytes;
}

void require_memory(const RecurrenceProblem& problem, std::string_view what, std::int64_t bytes,
                    std::int64_t limit) {
  if (bytes <= limit) return;
  // All but the states at hand grows in proportion to the rows.
  const double share = static_cast<double>(limit) / static_cast<double>(bytes);
  const auto rows = static_cast<std::int64_t>(share * static_cast<double>(problem.seq_len));
  throw InvalidInput(
      str(what, " take ", human_bytes(bytes), ", and ", human_bytes(limit), " of memory are free; use ",
          rows > 0 ? str("--seq-len ", rows, " or less, or ") : "", "fewer heads, or a smaller --head-dim"));
}

}  // namespace cp::sim
