#include "sim/proof/run/attention_test_data.h"

#include <mutex>
#include <utility>

#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/input_values.h"

namespace cp::sim {
namespace {

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
    q = checked_input("q", std::move(values.q), queries * problem.head_dim, problem.dtype);
    k = checked_input("k", std::move(values.k), keys * problem.head_dim, problem.dtype);
    v = checked_input("v", std::move(values.v), keys * problem.v_head_dim, problem.dtype);
    dout = checked_input("dout", std::move(values.dout), queries * problem.v_head_dim, problem.dtype);
    sinks = checked_input("sinks", std::move(values.sinks), problem.sinks ? problem.q_heads : 0, DType::f32);
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
