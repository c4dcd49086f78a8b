// The inputs of a recurrent layer, drawn from a seed or given, and what one device makes of them in float64.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shared/recurrence/problem.h"

namespace cp::sim {

struct RecurrenceOutputs;
struct RecurrenceGradients;

// The inputs as global tensors (recurrence_reference.h says how they lie). If they are given, the rows of v
// and dout should have random signs, since the tolerances count on that (recurrence_tolerance.h).
struct RecurrenceValues {
  std::vector<double> q, k, v, dout, log_decay, beta;
};

// The inputs, rounded to the problem's dtype (log_decay and beta: to f32), and what one device makes of them.
// An object is made once and used for all strategies. Results are computed on first use, and any thread may
// ask for them. The constructors throw what validate_problem() throws, and InvalidInput for a tensor of
// another size than the problem's.
//
// What is drawn lets every row be seen at the end of its document, so that a chunk that is lost or counted
// twice shows. q, v and dout are uniform with mean 0 and variance 1, and k is the same over sqrt(key_dim), so
// that |k| is about 1. With L as the rows of the longest document,
//   log_decay   is uniform in [-4/L, 0]: over L rows all that a state holds decays to about exp(-2)
//   beta        is uniform in (0, min(1, 4 key_dim / L)): a row of the delta rule erases beta |k|^2 of what
//               lies along k, which is about beta / key_dim of a state, and L rows leave about exp(-2) of it
class RecurrenceTestData {
 public:
  RecurrenceTestData(const RecurrenceProblem& problem, std::uint64_t seed);
  RecurrenceTestData(const RecurrenceProblem& problem, RecurrenceValues values);
  ~RecurrenceTestData();
  RecurrenceTestData(RecurrenceTestData&&) noexcept;

  const RecurrenceProblem& problem() const;

  // All inputs, to make other data of.
  RecurrenceValues inputs() const { return {q(), k(), v(), dout(), log_decay(), beta()}; }

  const std::vector<double>& q() const;
  const std::vector<double>& k() const;
  const std::vector<double>& v() const;
  const std::vector<double>& dout() const;
  const std::vector<double>& log_decay() const;
  const std::vector<double>& beta() const;
  const std::vector<double>& out() const;
  const std::vector<double>& dq() const;
  const std::vector<double>& dk() const;
  const std::vector<double>& dv() const;
  const std::vector<double>& dlog_decay() const;
  const std::vector<double>& dbeta() const;

  const RecurrenceOutputs& forward() const;
  const RecurrenceGradients& backward() const;  // both with the norms that bound the errors

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::sim
