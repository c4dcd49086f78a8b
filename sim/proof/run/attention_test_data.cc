#include "sim/proof/run/attention_test_data.h"

#include <cmath>
#include <mutex>
#include <utility>

#include "shared/base/error.h"
#include "sim/proof/run/attention_reference.h"

namespace cp::sim {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The format's bits of precision and the exponent of its least normal number.
struct Format {
  int bits, least_exponent;
};
Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {24, -126};
    case DType::f16:
      return {11, -14};
    case DType::bf16:
      return {8, -126};
    case DType::i32:
    case DType::i64:
      break;
  }
  throw InvalidInput(str("dtype=", name(dtype), " has no attention; use f32, f16 or bf16"));
}

// To nearest even, for values far from overflow.
double rounded(double value, const Format& format) {
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  const int unit = std::max(exponent - 1, format.least_exponent) - (format.bits - 1);
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

std::vector<double> random_values(std::int64_t numel, std::uint64_t seed) {
  const double unit = std::ldexp(1, -53), half_width = std::sqrt(3.0);
  std::vector<double> values(static_cast<std::size_t>(numel));
  std::uint64_t state = mix(seed);
  for (double& value : values) {
    const double uniform = static_cast<double>(mix(state++) >> 11) * unit;  // [0, 1)
    value = half_width * (2 * uniform - 1);
  }
  return values;
}

AttentionValues random_inputs(const AttentionProblem& problem, std::uint64_t seed) {
  validate_problem(problem);
  const std::int64_t queries = problem.batch * problem.q_heads * problem.q_len;
  const std::int64_t keys = problem.batch * problem.kv_heads * problem.kv_len;
  return {random_values(queries * problem.head_dim, mix(seed) + 1),
          random_values(keys * problem.head_dim, mix(seed) + 2),
          random_values(keys * problem.v_head_dim, mix(seed) + 3),
          random_values(queries * problem.v_head_dim, mix(seed) + 4),
          problem.sinks ? random_values(problem.q_heads, mix(seed) + 5) : std::vector<double>()};
}

std::vector<double> checked(const char* name, std::vector<double> values, std::int64_t numel, DType dtype) {
  if (values.size() != static_cast<std::size_t>(numel)) {
    throw InvalidInput(str(name, " has ", values.size(), " values, where the problem has ", numel));
  }
  const Format format = format_of(dtype);
  for (double& value : values) value = rounded(value, format);
  return values;
}

}  // namespace

struct AttentionTestData::Impl {
  AttentionProblem problem;
  std::uint64_t seed = 0;
  std::vector<double> q, k, v, dout, sinks;
  ReferenceForward forward;
  ReferenceBackward backward;
  std::once_flag has_forward, has_backward;

  Impl(const AttentionProblem& p, std::uint64_t s, AttentionValues values) : problem(p), seed(s) {
    validate_problem(problem);
    const std::int64_t queries = problem.batch * problem.q_heads * problem.q_len;
    const std::int64_t keys = problem.batch * problem.kv_heads * problem.kv_len;
    q = checked("q", std::move(values.q), queries * problem.head_dim, problem.dtype);
    k = checked("k", std::move(values.k), keys * problem.head_dim, problem.dtype);
    v = checked("v", std::move(values.v), keys * problem.v_head_dim, problem.dtype);
    dout = checked("dout", std::move(values.dout), queries * problem.v_head_dim, problem.dtype);
    sinks = checked("sinks", std::move(values.sinks), problem.sinks ? problem.q_heads : 0, DType::f32);
  }
  ReferenceInputs inputs() const { return {problem, q, k, v, sinks, seed}; }
  const ReferenceForward& results() {
    std::call_once(has_forward, [&] { forward = reference_forward(inputs()); });
    return forward;
  }
  const ReferenceBackward& gradients() {
    std::call_once(has_backward, [&] { backward = reference_backward(inputs(), results(), dout); });
    return backward;
  }
};

AttentionTestData::AttentionTestData(const AttentionProblem& problem, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(problem, seed, random_inputs(problem, seed))) {}
AttentionTestData::AttentionTestData(const AttentionProblem& problem, AttentionValues values,
                                     std::uint64_t seed)
    : impl_(std::make_unique<Impl>(problem, seed, std::move(values))) {}
AttentionTestData::~AttentionTestData() = default;
AttentionTestData::AttentionTestData(AttentionTestData&&) noexcept = default;

const AttentionProblem& AttentionTestData::problem() const { return impl_->problem; }
std::uint64_t AttentionTestData::seed() const { return impl_->seed; }
const std::vector<double>& AttentionTestData::q() const { return impl_->q; }
const std::vector<double>& AttentionTestData::k() const { return impl_->k; }
const std::vector<double>& AttentionTestData::v() const { return impl_->v; }
const std::vector<double>& AttentionTestData::sinks() const { return impl_->sinks; }
const std::vector<double>& AttentionTestData::dout() const { return impl_->dout; }
const std::vector<double>& AttentionTestData::out() const { return impl_->results().out; }
const std::vector<double>& AttentionTestData::lse() const { return impl_->results().lse; }
const std::vector<double>& AttentionTestData::dq() const { return impl_->gradients().dq; }
const std::vector<double>& AttentionTestData::dk() const { return impl_->gradients().dk; }
const std::vector<double>& AttentionTestData::dv() const { return impl_->gradients().dv; }
const ReferenceForward& AttentionTestData::forward() const { return impl_->results(); }
const ReferenceBackward& AttentionTestData::backward() const { return impl_->gradients(); }

}  // namespace cp::sim
