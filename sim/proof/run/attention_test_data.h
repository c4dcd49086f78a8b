// The inputs of an attention problem, drawn from a seed or given, and what one device makes of them in
// float64.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shared/context_parallel/problem.h"

namespace cp::sim {

struct ReferenceForward;
struct ReferenceBackward;

// The inputs as global tensors, [batch, heads, seq, dim]. If they are given, the rows of v and dout should
// have random signs, since the tolerances count on that (attention_tolerance.h).
struct AttentionValues {
  std::vector<double> q, k, v, dout;  // without k and v if the problem has latent rows
  std::vector<double> sinks = {};     // [q_heads]; only if the problem has them
  // [batch, kv_len, rank + rope_dim] and [kv_heads, nope + v_head_dim, rank]; only if the problem has them.
  std::vector<double> latent = {}, kv_up = {};
};

// The inputs, rounded to the problem's dtype, and what one device makes of them. An object is made once and
// used for all strategies. Results are computed on first use, and any thread may ask for them. Values that
// are drawn are uniform, with mean 0 and variance 1, and those of kv_up with variance 1 / rank, so that keys
// and values have variance 1, too. The constructors throw what validate_problem() throws,
// and InvalidInput for a dtype that is not floating and for a tensor of another size than the problem's.
class AttentionTestData {
 public:
  AttentionTestData(const AttentionProblem& problem, std::uint64_t seed);
  AttentionTestData(const AttentionProblem& problem, AttentionValues values, std::uint64_t seed = 0);
  ~AttentionTestData();
  AttentionTestData(AttentionTestData&&) noexcept;

  const AttentionProblem& problem() const;
  std::uint64_t seed() const;  // also of dropout

  // All inputs, to make other data of.
  AttentionValues inputs() const;

  // Global tensors, row-major [batch, heads, seq, dim] (lse: [batch, heads, seq]).
  // With latent rows k and v are what these expand to, not rounded, and dk and dv the gradients of that.
  const std::vector<double>& q() const;
  const std::vector<double>& k() const;
  const std::vector<double>& v() const;
  const std::vector<double>& dout() const;
  const std::vector<double>& sinks() const;
  const std::vector<double>& latent() const;
  const std::vector<double>& kv_up() const;
  const std::vector<double>& dlatent() const;
  const std::vector<double>& out() const;
  const std::vector<double>& lse() const;
  const std::vector<double>& dq() const;
  const std::vector<double>& dk() const;
  const std::vector<double>& dv() const;

  const ReferenceForward& forward() const;
  const ReferenceBackward& backward() const;  // with the sums that bound the errors

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::sim
