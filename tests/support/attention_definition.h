// Attention and its gradients on one device in float64, straight from the definition: what kernels and
// distributed plans are compared with. All tensors are dense and row-major, [batch, seq, heads, head_dim];
// lse is [batch, heads, seq].
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace cp::testing {

struct AttentionShape {
  std::int64_t batch = 1, q_len = 1, kv_len = 1, q_heads = 1, kv_heads = 1, head_dim = 1, v_head_dim = 1;

  std::int64_t q_numel() const { return batch * q_len * q_heads * head_dim; }
  std::int64_t k_numel() const { return batch * kv_len * kv_heads * head_dim; }
  std::int64_t v_numel() const { return batch * kv_len * kv_heads * v_head_dim; }
  std::int64_t out_numel() const { return batch * q_len * q_heads * v_head_dim; }
  std::int64_t lse_numel() const { return batch * q_heads * q_len; }
};

using AttentionMask = std::function<bool(std::int64_t q, std::int64_t k)>;  // may query q see key k?

struct AttentionInputs {
  AttentionShape shape;
  double softmax_scale = 1;
  AttentionMask mask;
  std::vector<double> q, k, v;
  double softcap = 0;              // 0: none
  std::vector<double> sinks = {};  // [q_heads], or none
  // What dropout multiplies the weight of a batch, head, query and key by; or none.
  std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)> kept = {};
};

struct AttentionOutputs {
  std::vector<double> out, lse;  // 0 and -inf for a query that sees nothing
};
AttentionOutputs reference_forward(const AttentionInputs& inputs);

struct AttentionGradients {
  std::vector<double> dq, dk, dv;
  std::vector<double> dsinks = {};
};
AttentionGradients reference_backward(const AttentionInputs& inputs, const std::vector<double>& dout);

}  // namespace cp::testing
