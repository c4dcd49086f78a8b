#include "tests/support/attention_definition.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cp::testing {
namespace {

// Row-major [batch, seq, heads, dim].
std::size_t at(std::int64_t batch, std::int64_t seq, std::int64_t head, std::int64_t d, std::int64_t seq_len,
               std::int64_t heads, std::int64_t dim) {
  return static_cast<std::size_t>(((batch * seq_len + seq) * heads + head) * dim + d);
}

// One row of the attention matrix: the probabilities of all keys for one query, and the row's lse.
struct Row {
  std::vector<double> p;
  // Of each key: the score's derivative by the one before the cap; dropout's factor.
  std::vector<double> slopes, kept;
  double sink = 0;  // its share
  double lse = -std::numeric_limits<double>::infinity();
};

class Attention {
 public:
  explicit Attention(const AttentionInputs& inputs) : in_(inputs), shape_(inputs.shape) {}

  std::int64_t kv_head(std::int64_t head) const { return head / (shape_.q_heads / shape_.kv_heads); }
  std::size_t q_at(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
    return at(b, i, h, d, shape_.q_len, shape_.q_heads, shape_.head_dim);
  }
  std::size_t k_at(std::int64_t b, std::int64_t j, std::int64_t h, std::int64_t d) const {
    return at(b, j, kv_head(h), d, shape_.kv_len, shape_.kv_heads, shape_.head_dim);
  }
  std::size_t v_at(std::int64_t b, std::int64_t j, std::int64_t h, std::int64_t d) const {
    return at(b, j, kv_head(h), d, shape_.kv_len, shape_.kv_heads, shape_.v_head_dim);
  }
  std::size_t out_at(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
    return at(b, i, h, d, shape_.q_len, shape_.q_heads, shape_.v_head_dim);
  }

  Row row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    constexpr double kHidden = -std::numeric_limits<double>::infinity();
    const auto keys = static_cast<std::size_t>(shape_.kv_len);
    Row row;
    row.p.assign(keys, kHidden), row.slopes.assign(keys, 1.0), row.kept.assign(keys, 1.0);
    const double sink = in_.sinks.empty() ? kHidden : in_.sinks[static_cast<std::size_t>(h)];
    double greatest = sink, sum = 0;
    for (std::int64_t j = 0; j < shape_.kv_len; ++j) {
      if (!in_.mask(i, j)) continue;
      double score = 0;
      for (std::int64_t d = 0; d < shape_.head_dim; ++d)
        score += in_.q[q_at(b, i, h, d)] * in_.k[k_at(b, j, h, d)];
      score *= in_.softmax_scale;
      const auto key = static_cast<std::size_t>(j);
      if (in_.softcap != 0) {
        const double cosine = std::cosh(score / in_.softcap);
        row.slopes[key] = 1 / (cosine * cosine);
        score = in_.softcap * std::tanh(score / in_.softcap);
      }
      if (in_.kept) row.kept[key] = in_.kept(b, h, i, j);
      row.p[key] = score;
      greatest = std::max(greatest, score);
    }
    for (double& p : row.p) {
      p = p == kHidden ? 0 : std::exp(p - greatest);
      sum += p;
    }
    if (sink != kHidden) sum += row.sink = std::exp(sink - greatest);
    if (sum == 0) return row;
    for (double& p : row.p) p /= sum;
    row.sink /= sum;
    row.lse = greatest + std::log(sum);
    return row;
  }

  template <class F>
  void for_each_row(F&& f) const {
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      for (std::int64_t h = 0; h < shape_.q_heads; ++h) {
        for (std::int64_t i = 0; i < shape_.q_len; ++i) f(b, h, i, row(b, h, i));
      }
    }
  }

 private:
  const AttentionInputs& in_;
  const AttentionShape& shape_;
};

}  // namespace

AttentionOutputs reference_forward(const AttentionInputs& inputs) {
  const AttentionShape& shape = inputs.shape;
  const Attention attention(inputs);
  AttentionOutputs result{std::vector<double>(static_cast<std::size_t>(shape.out_numel())), {}};
  attention.for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t i, const Row& row) {
    result.lse.push_back(row.lse);
    for (std::int64_t j = 0; j < shape.kv_len; ++j) {
      for (std::int64_t d = 0; d < shape.v_head_dim; ++d) {
        result.out[attention.out_at(b, i, h, d)] += row.p[static_cast<std::size_t>(j)] *
                                                    row.kept[static_cast<std::size_t>(j)] *
                                                    inputs.v[attention.v_at(b, j, h, d)];
      }
    }
  });
  return result;
}

AttentionGradients reference_backward(const AttentionInputs& inputs, const std::vector<double>& dout) {
  const AttentionShape& shape = inputs.shape;
  const Attention attention(inputs);
  AttentionGradients grads{std::vector<double>(inputs.q.size()), std::vector<double>(inputs.k.size()),
                           std::vector<double>(inputs.v.size()), std::vector<double>(inputs.sinks.size())};
  attention.for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t i, const Row& row) {
    std::vector<double> dp(row.p.size());
    double p_dp = 0;
    for (std::int64_t j = 0; j < shape.kv_len; ++j) {
      const std::size_t key = static_cast<std::size_t>(j);
      for (std::int64_t d = 0; d < shape.v_head_dim; ++d) {
        const double upstream = dout[attention.out_at(b, i, h, d)];
        dp[key] += upstream * inputs.v[attention.v_at(b, j, h, d)];
        grads.dv[attention.v_at(b, j, h, d)] += row.p[key] * row.kept[key] * upstream;
      }
      dp[key] *= row.kept[key];
      p_dp += row.p[key] * dp[key];
    }
    if (!inputs.sinks.empty()) grads.dsinks[static_cast<std::size_t>(h)] -= row.sink * p_dp;
    for (std::int64_t j = 0; j < shape.kv_len; ++j) {
      const std::size_t key = static_cast<std::size_t>(j);
      // The Jacobian of softmax.
      const double ds = row.p[key] * (dp[key] - p_dp) * row.slopes[key] * inputs.softmax_scale;
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        grads.dq[attention.q_at(b, i, h, d)] += ds * inputs.k[attention.k_at(b, j, h, d)];
        grads.dk[attention.k_at(b, j, h, d)] += ds * inputs.q[attention.q_at(b, i, h, d)];
      }
    }
  });
  return grads;
}

}  // namespace cp::testing
