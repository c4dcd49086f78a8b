#include "sim/proof/run/attention_test_data.h"

#include <cmath>
#include <mutex>
#include <utility>

#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/input_values.h"
#include "sim/proof/run/latent_reference.h"

namespace cp::sim {
namespace {

AttentionValues random_inputs(const AttentionProblem& problem, std::uint64_t seed) {
  validate_problem(problem);
  const std::int64_t queries = problem.batch * problem.q_heads * problem.q_len;
  const std::int64_t keys = problem.batch * problem.kv_heads * problem.kv_len;
  AttentionValues values{random_values(queries * problem.head_dim, mix(seed) + 1),
                         {},
                         {},
                         random_values(queries * problem.v_head_dim, mix(seed) + 4)};
  if (problem.sinks) values.sinks = random_values(problem.q_heads, mix(seed) + 5);
  if (!problem.has_latent()) {
    values.k = random_values(keys * problem.head_dim, mix(seed) + 2);
    values.v = random_values(keys * problem.v_head_dim, mix(seed) + 3);
    return values;
  }
  values.latent = random_values(problem.batch * problem.kv_len * problem.latent.dim(), mix(seed) + 6);
  values.kv_up = random_values(problem.kv_heads * problem.up_rows() * problem.latent.rank, mix(seed) + 7);
  for (double& value : values.kv_up) value /= std::sqrt(static_cast<double>(problem.latent.rank));
  return values;
}

}  // namespace

struct AttentionTestData::Impl {
  AttentionProblem problem;
  std::uint64_t seed = 0;
  std::vector<double> q, k, v, dout, sinks, latent, kv_up;
  ReferenceForward forward;
  ReferenceBackward backward;
  std::vector<double> dlatent;
  std::once_flag has_forward, has_backward;

  Impl(const AttentionProblem& p, std::uint64_t s, AttentionValues values) : problem(p), seed(s) {
    validate_problem(problem);
    const std::int64_t queries = problem.batch * problem.q_heads * problem.q_len;
    const std::int64_t keys = problem.batch * problem.kv_heads * problem.kv_len;
    q = checked_input("q", std::move(values.q), queries * problem.head_dim, problem.dtype);
    const bool has_latent = problem.has_latent();
    const std::int64_t given = has_latent ? 0 : keys;
    k = checked_input("k", std::move(values.k), given * problem.head_dim, problem.dtype);
    v = checked_input("v", std::move(values.v), given * problem.v_head_dim, problem.dtype);
    latent =
        checked_input("latent", std::move(values.latent),
                      has_latent ? problem.batch * problem.kv_len * problem.latent.dim() : 0, problem.dtype);
    kv_up = checked_input("kv_up", std::move(values.kv_up),
                          has_latent ? problem.kv_heads * problem.up_rows() * problem.latent.rank : 0,
                          problem.dtype);
    if (has_latent) {
      ExpandedKeys expanded = reference_expand({problem, latent, kv_up});
      k = std::move(expanded.k), v = std::move(expanded.v);
    }
    dout = checked_input("dout", std::move(values.dout), queries * problem.v_head_dim, problem.dtype);
    sinks = checked_input("sinks", std::move(values.sinks), problem.sinks ? problem.q_heads : 0, DType::f32);
  }
  ReferenceInputs inputs() const { return {problem, q, k, v, sinks, seed, &latent}; }
  const ReferenceForward& results() {
    std::call_once(has_forward, [&] { forward = reference_forward(inputs()); });
    return forward;
  }
  const ReferenceBackward& gradients() {
    std::call_once(has_backward, [&] {
      backward = reference_backward(inputs(), results(), dout);
      if (problem.has_latent()) dlatent = reference_dlatent({problem, latent, kv_up}, backward);
    });
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

AttentionValues AttentionTestData::inputs() const {
  const bool expanded = problem().has_latent();
  return {q(),
          expanded ? std::vector<double>() : k(),
          expanded ? std::vector<double>() : v(),
          dout(),
          sinks(),
          latent(),
          kv_up()};
}
const AttentionProblem& AttentionTestData::problem() const { return impl_->problem; }
std::uint64_t AttentionTestData::seed() const { return impl_->seed; }
const std::vector<double>& AttentionTestData::q() const { return impl_->q; }
const std::vector<double>& AttentionTestData::k() const { return impl_->k; }
const std::vector<double>& AttentionTestData::v() const { return impl_->v; }
const std::vector<double>& AttentionTestData::sinks() const { return impl_->sinks; }
const std::vector<double>& AttentionTestData::latent() const { return impl_->latent; }
const std::vector<double>& AttentionTestData::kv_up() const { return impl_->kv_up; }
const std::vector<double>& AttentionTestData::dlatent() const {
  impl_->gradients();
  return impl_->dlatent;
}
const std::vector<double>& AttentionTestData::dout() const { return impl_->dout; }
const std::vector<double>& AttentionTestData::out() const { return impl_->results().out; }
const std::vector<double>& AttentionTestData::lse() const { return impl_->results().lse; }
const std::vector<double>& AttentionTestData::dq() const { return impl_->gradients().dq; }
const std::vector<double>& AttentionTestData::dk() const { return impl_->gradients().dk; }
const std::vector<double>& AttentionTestData::dv() const { return impl_->gradients().dv; }
const ReferenceForward& AttentionTestData::forward() const { return impl_->results(); }
const ReferenceBackward& AttentionTestData::backward() const { return impl_->gradients(); }

}  // namespace cp::sim
