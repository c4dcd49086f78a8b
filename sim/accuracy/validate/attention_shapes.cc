#include "sim/accuracy/validate/attention_shapes.h"

#include <cstddef>
#include <numeric>

namespace cp::sim::detail {

AttentionProblem self_attention(std::int64_t seq_len, std::int64_t q_heads, std::int64_t kv_heads,
                                std::int64_t head_dim) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = seq_len;
  problem.q_heads = q_heads, problem.kv_heads = kv_heads;
  problem.head_dim = problem.v_head_dim = head_dim;
  problem.dtype = DType::bf16;
  return problem;
}

AttentionRequest over_ranks(const AttentionProblem& problem, int cp, const Strategy& strategy) {
  AttentionRequest request{problem, {}, strategy, false, {.gradients = {}, .lse = LsePlace::computed}};
  request.ranks.resize(static_cast<std::size_t>(cp));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  return request;
}

}  // namespace cp::sim::detail
