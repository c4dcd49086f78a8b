#include "sim/proof/run/recurrence_test_data.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "sim/proof/run/input_values.h"
#include "sim/proof/run/recurrence_reference.h"

namespace cp::sim {
namespace {

// The elements of tensors like q, like v, and like log_decay.
struct RecurrenceNumels {
  explicit RecurrenceNumels(const RecurrenceProblem& problem)
      : keys(problem.batch * problem.seq_len * problem.key_heads * problem.key_dim),
        values(problem.batch * problem.seq_len * problem.value_heads * problem.value_dim),
        numbers(problem.batch * problem.seq_len * problem.value_heads) {}
  std::int64_t keys, values, numbers;
};

double longest_document(const RecurrenceProblem& problem) {
  std::int64_t longest = problem.cu_seqlens.empty() ? problem.seq_len : 1;
  for (std::size_t d = 1; d < problem.cu_seqlens.size(); ++d)
    longest = std::max(longest, problem.cu_seqlens[d] - problem.cu_seqlens[d - 1]);
  return static_cast<double>(longest);
}

void scale_by(double factor, std::vector<double>& values) {
  for (double& value : values) value *= factor;
}

RecurrenceValues random_recurrence_values(const RecurrenceProblem& problem, std::uint64_t seed) {
  validate_problem(problem);
  const RecurrenceNumels numels(problem);
  RecurrenceValues drawn = {
      random_values(numels.keys, mix(seed) + 1),   random_values(numels.keys, mix(seed) + 2),
      random_values(numels.values, mix(seed) + 3), random_values(numels.values, mix(seed) + 4),
      unit_values(numels.numbers, mix(seed) + 5),  unit_values(numels.numbers, mix(seed) + 6)};
  const auto key_dim = static_cast<double>(problem.key_dim);
  const double longest = longest_document(problem);
  scale_by(1 / std::sqrt(key_dim), drawn.k);
  scale_by(-4 / longest, drawn.log_decay);
  for (double& beta : drawn.beta) beta += 0x1p-54;  // drawn among the multiples of 2^-53: 0 is left out
  scale_by(std::min(1.0, 4 * key_dim / longest), drawn.beta);
  return drawn;
}

}  // namespace

struct RecurrenceTestData::Impl {
  RecurrenceProblem problem;
  RecurrenceValues values;
  RecurrenceOutputs outputs;
  RecurrenceGradients gradients;
  std::once_flag has_outputs, has_gradients;

  Impl(const RecurrenceProblem& p, RecurrenceValues given) : problem(p) {
    validate_problem(problem);
    const RecurrenceNumels numels(problem);
    values.q = checked_input("q", std::move(given.q), numels.keys, problem.dtype);
    values.k = checked_input("k", std::move(given.k), numels.keys, problem.dtype);
    values.v = checked_input("v", std::move(given.v), numels.values, problem.dtype);
    values.dout = checked_input("dout", std::move(given.dout), numels.values, problem.dtype);
    values.log_decay = checked_input("log_decay", std::move(given.log_decay), numels.numbers, DType::f32);
    values.beta = checked_input("beta", std::move(given.beta), numels.numbers, DType::f32);
  }
  RecurrenceInputs inputs() const {
    return {problem, values.q, values.k, values.v, values.log_decay, values.beta};
  }
  const RecurrenceOutputs& forward() {
    std::call_once(has_outputs, [&] { outputs = reference_recurrence(inputs()); });
    return outputs;
  }
  const RecurrenceGradients& backward() {
    std::call_once(has_gradients, [&] { gradients = reference_recurrence_gradients(inputs(), values.dout); });
    return gradients;
  }
};

RecurrenceTestData::RecurrenceTestData(const RecurrenceProblem& problem, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(problem, random_recurrence_values(problem, seed))) {}
RecurrenceTestData::RecurrenceTestData(const RecurrenceProblem& problem, RecurrenceValues values)
    : impl_(std::make_unique<Impl>(problem, std::move(values))) {}
RecurrenceTestData::~RecurrenceTestData() = default;
RecurrenceTestData::RecurrenceTestData(RecurrenceTestData&&) noexcept = default;

const RecurrenceProblem& RecurrenceTestData::problem() const { return impl_->problem; }
const std::vector<double>& RecurrenceTestData::q() const { return impl_->values.q; }
const std::vector<double>& RecurrenceTestData::k() const { return impl_->values.k; }
const std::vector<double>& RecurrenceTestData::v() const { return impl_->values.v; }
const std::vector<double>& RecurrenceTestData::dout() const { return impl_->values.dout; }
const std::vector<double>& RecurrenceTestData::log_decay() const { return impl_->values.log_decay; }
const std::vector<double>& RecurrenceTestData::beta() const { return impl_->values.beta; }
const std::vector<double>& RecurrenceTestData::out() const { return forward().out; }
const std::vector<double>& RecurrenceTestData::dq() const { return backward().dq; }
const std::vector<double>& RecurrenceTestData::dk() const { return backward().dk; }
const std::vector<double>& RecurrenceTestData::dv() const { return backward().dv; }
const std::vector<double>& RecurrenceTestData::dlog_decay() const { return backward().dlog_decay; }
const std::vector<double>& RecurrenceTestData::dbeta() const { return backward().dbeta; }
const RecurrenceOutputs& RecurrenceTestData::forward() const { return impl_->forward(); }
const RecurrenceGradients& RecurrenceTestData::backward() const { return impl_->backward(); }

}  // namespace cp::sim
