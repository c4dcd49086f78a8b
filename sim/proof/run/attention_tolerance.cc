#include "sim/proof/run/attention_tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "shared/kernels/tiled_attention.h"
#include "sim/proof/ledger/mask_rule.h"
#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/error_sizes.h"
#include "sim/proof/run/latent_tolerance.h"

namespace cp::sim {
namespace {

constexpr double kUnit = roundoff(DType::f32);
// Kernels take weights below this as 0: e^-86.9, as the header says, rounded up.
constexpr double kFlushed = 0x1p-125;

// Of partial sums of terms with random signs, from the sums of their sizes and squares.
double partial_sum(double sizes, double squares) { return std::min(sizes, kGrowth * std::sqrt(squares)); }

// The 2-norms of rows of `dim` values; of the products of two tensors where `other` is given.
std::vector<double> norms(const std::vector<double>& values, std::int64_t dim,
                          const std::vector<double>* other = nullptr) {
  const auto width = static_cast<std::size_t>(dim);
  std::vector<double> result(values.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i / width] += square(other == nullptr ? values[i] : values[i] * (*other)[i]);
  }
  for (double& norm : result) norm = std::sqrt(norm);
  return result;
}

// Squares of the errors of one row of queries, as the header names them; c alone is an error.
struct RowErrors {
  double n = 0;  // keys
  double e2 = 0, h2 = 0, a2 = 0, lse2 = 0, w2 = 0, dp2 = 0, delta2 = 0;
  double c = 0;
  double key2 = 0;  // the part of e2 that is a key's own error
};

// The largest of the rows that share keys, and what all of a key's sums are measured by.
struct KeyErrors {
  double w2 = 0, row2 = 0, c = 0, c_ds = 0;  // w^2 + lse^2, dp^2 + delta^2, c, c sum|ds|
  double key2 = 0, ds2 = 0;                  // of keys made of latent rows: their own error, sum ds^2
};

class Bounds {
 public:
  Bounds(const AttentionTestData& data, const AttentionRequest& request, const Target& target)
      : data_(data),
        p_(data.problem()),
        keys_(visible_keys(p_)),
        v_(roundoff(p_.dtype)),
        fused_forward_(uses_fused_attention(p_, AttentionPass::forward, target)),
        fused_backward_(uses_fused_attention(p_, AttentionPass::backward, target)),
        chains_(target == host_target()),
        ranks_(request.ranks.size() > 1 ? static_cast<double>(request.ranks.size()) : 0),
        g_(request.strategy.input_dtype_gradients ? v_ : kUnit),
        m_(request.strategy.input_dtype_merge ? v_ : kUnit),
        d_(products(p_.head_dim)),
        dv_(products(p_.v_head_dim)),
        scale_(std::abs(p_.scale())),
        scale_error_(scale_ == 0 ? 0
                                 : std::abs(static_cast<double>(static_cast<float>(scale_)) / scale_ - 1)),
        kept_(1 / (1 - p_.dropout.probability)),
        sink_(largest(data.sinks())),
        most_v_(kept_ * largest(data.v())),
        q_norms_(norms(data.q(), p_.head_dim)),
        k_norm_(largest(norms(data.k(), p_.head_dim))),
        v_norm_(kept_ * largest(norms(data.v(), p_.v_head_dim))),
        expansion_(expansion_errors(data)) {
    errors_.ranks = ranks_, errors_.g = g_, errors_.kept = kept_;
  }

  void forward(AttentionTolerances& t) const {
    t.out = empty(q_norms_.size(), v_), t.lse = empty(q_norms_.size(), 0);
    for (std::size_t row = 0; row < q_norms_.size(); ++row) {
      const RowErrors e = row_errors(row);
      if (e.n == 0) continue;
      const double p2 = data_.forward().row_p2[row];
      t.out.rows[row] =
          most_v_ *
              (kGrowth * std::sqrt(4 * e.e2 * p2 + (e.h2 + relative(expansion_.v2, most_v_)) * p2 + e.a2) +
               2 * e.c + 2 * e.n * kFlushed) +
          (fused_forward_ ? half_least_step(p_.dtype) : 0);
      t.lse.rows[row] = kGrowth * std::sqrt(e.lse2) + e.c + e.n * kFlushed;
    }
  }

  // Of what latent rows are expanded to.
  void expansion(AttentionTolerances& t) const {
    const std::size_t rows = static_cast<std::size_t>(p_.batch * p_.kv_heads * p_.kv_len);
    t.k = empty(rows, v_), t.v = empty(rows, v_);
    std::fill(t.k.rows.begin(), t.k.rows.end(), kGrowth * std::sqrt(expansion_.k2));
    std::fill(t.v.rows.begin(), t.v.rows.end(), kGrowth * std::sqrt(expansion_.v2));
  }

  void backward(AttentionTolerances& t) {
    const ReferenceBackward& sums = data_.backward();
    const std::vector<double> dout = norms(data_.dout(), p_.v_head_dim),
                              out = norms(data_.out(), p_.v_head_dim),
                              dout_out = norms(data_.dout(), p_.v_head_dim, &data_.out());
    const double largest_k = largest(data_.k()), most_k = scale_ * largest_k;
    if (p_.has_latent()) {
      for (std::vector<double>* of_rows :
           {&errors_.row_ds2, &errors_.row_ds, &errors_.row_p2, &errors_.row_p})
        of_rows->resize(q_norms_.size());
    }
    KeyErrors most;
    t.dq = empty(q_norms_.size(), v_);
    t.row_dsink.resize(sums.row_sink.size()), t.row_dsink2.resize(sums.row_sink.size());
    for (std::size_t row = 0; row < q_norms_.size(); ++row) {
      RowErrors e = row_errors(row);
      if (e.n == 0) continue;
      const double p2 = data_.forward().row_p2[row], ds = sums.row_ds[row], ds2 = sums.row_ds2[row];
      e.dp2 = (dv_ + 4) * square(kUnit * dout[row] * v_norm_) + square(dout[row]) * expansion_.v2;
      e.delta2 = (static_cast<double>(p_.v_head_dim) + 1) * square(kUnit * dout[row] * out[row]) +
                 square(v_ * dout_out[row]) +
                 square(dout[row]) * (square(most_v_ * (p_.has_latent() ? 1 : partial_sum(1, p2))) * e.a2 +
                                      square(half_least_step(p_.dtype)) + expansion_.v2 * p2) +
                 e.e2 * ds2 + 2 * e.h2 * (ds2 + square(dout[row] * out[row]) * p2);
      const double once =
          e.lse2 + (chain(e.n, kQueryChain) + 4) * square(kUnit) + 2 * ranks_ * square(g_) + f2();
      const double of_ds = e.w2 * ds2 + e.dp2 * p2 + once * square(ds) + e.delta2,
                   of_scale = 5 * e.c * ds + 2 * dout[row] * v_norm_ * e.n * kFlushed;
      t.dq.rows[row] =
          most_k * (kGrowth * std::sqrt(of_ds + relative(expansion_.k2, largest_k) * ds2) + of_scale) +
          least_steps(e.n);
      if (p_.has_latent()) {
        errors_.row_ds2[row] = of_ds, errors_.row_ds[row] = of_scale;
        errors_.row_p2[row] = e.w2 * p2 + e.lse2 + (chain(e.n, kQueryChain) + 4) * square(kUnit) + f2();
        errors_.row_p[row] = 2 * e.c + e.n * kFlushed;
      }
      if (p_.sinks) {
        const double c = sums.row_dsink[row], p = sums.row_sink[row];
        t.row_dsink2[row] = square(kGrowth) * (square(c) * e.lse2 + square(p) * e.delta2);
        t.row_dsink[row] = std::abs(c) * (e.c + 4 * kUnit);
      }
      most.w2 = std::max(most.w2, e.w2 + e.lse2);
      most.row2 = std::max(most.row2, e.dp2 + e.delta2);
      most.c = std::max(most.c, e.c);
      most.c_ds = std::max(most.c_ds, e.c * ds);
      most.key2 = std::max(most.key2, e.key2);
      most.ds2 = std::max(most.ds2, ds2);
    }
    bound_keys(most, largest(dout), t);
    if (!p_.has_latent()) return;
    auto [dlatent, dkv_up] = latent_tolerances(data_, errors_);
    t.dlatent = std::move(dlatent), t.dkv_up = std::move(dkv_up);
  }

 private:
  // The length of the longest sum of `terms` terms that is made one after another.
  double chain(double terms, std::int64_t longest) const {
    return chains_ ? std::min(terms, static_cast<double>(longest)) : terms;
  }
  // The same of a product over so many dimensions.
  double products(std::int64_t dim) const {
    const auto terms = static_cast<double>(dim);
    return std::min(terms, chain(terms, kScoreChain * (p_.dtype == DType::bf16 ? 2 : 1)) + terms / 32);
  }
  // Of a fused backward pass: the square of the roundoff of its parts, and what so many parts may lose below
  // the least number.
  double f2() const { return fused_backward_ ? square(v_) : 0; }
  double least_steps(double parts) const {
    return fused_backward_ ? kGrowth * std::sqrt(parts) * half_least_step(p_.dtype) : 0;
  }

  TensorTolerance empty(std::size_t rows, double relative) const {
    return {std::vector<double>(rows), relative, half_least_step(p_.dtype)};
  }

  // All but dp and delta.
  RowErrors row_errors(std::size_t row) const {
    const auto q_len = static_cast<std::size_t>(p_.q_len), heads = static_cast<std::size_t>(p_.q_heads);
    const KeyInterval& allowed = keys_[row / (heads * q_len)][row % q_len];
    RowErrors e;
    e.n = static_cast<double>(allowed.end - allowed.begin);
    if (e.n == 0) return e;
    const double u2 = square(kUnit), s = std::max(scale_ * q_norms_[row] * k_norm_, sink_),
                 lse = s + std::log(e.n + 1);
    const double sinks = p_.sinks ? 1 : 0, merges = (fused_forward_ ? std::max(e.n, ranks_) : ranks_) + sinks;
    const double values = chains_ ? chain(e.n, kForwardChain) : e.n + e.n / 128,
                 weights = chains_ ? chain(e.n, kWeightChain) : values;
    const double r2 = chains_ && s >= 4
                          ? std::min(s / 4, 2 + std::log(e.n) / 8) * u2 * (25 + square(8 + std::log(e.n)))
                          : 0;
    e.h2 = fused_forward_ ? square(v_) : 0;
    const double capped = p_.softcap == 0 ? 0 : square(8) * u2 * square(s);
    e.key2 = square(scale_ * q_norms_[row]) * expansion_.k2;
    e.e2 = (d_ + 5) * u2 * square(s) + 16 * u2 + capped + e.key2;
    e.a2 = (weights + values + 8) * u2 + 2 * r2 + (ranks_ + sinks) * 2 * square(m_) +
           merges * ((chains_ ? 1 : 36) * u2 + 4 * u2 * square(lse)) +
           (fused_forward_ ? merges * 2 * u2 + square(v_) : 0);
    e.lse2 = e.e2 * data_.forward().row_p2[row] + (weights + 8) * u2 + r2 + u2 * square(lse) +
             merges * (u2 * square(lse) + (chains_ ? 0 : 36) * u2);
    e.w2 = (d_ + 6) * u2 * square(s) + u2 * square(s + lse) + 16 * u2 + f2() + capped + e.key2;
    if (p_.softcap != 0) e.w2 += square(32) * u2 + e.e2;
    e.c = scale_error_ * s;
    return e;
  }

  // The square of an error of values of this size, relative to it.
  static double relative(double error2, double size) { return size == 0 ? 0 : error2 / square(size); }

  void bound_keys(const KeyErrors& most, double dout_norm, AttentionTolerances& t) {
    const ReferenceBackward& sums = data_.backward();
    const double most_q = scale_ * largest(data_.q()), most_dout = kept_ * largest(data_.dout());
    const std::vector<std::vector<double>> seen = queries_of_keys();
    const auto kv_len = static_cast<std::size_t>(p_.kv_len), kv_heads = static_cast<std::size_t>(p_.kv_heads);
    t.dk = empty(sums.key_p.size(), v_), t.dv = empty(sums.key_p.size(), v_);
    if (p_.has_latent()) {
      for (std::vector<double>* of_keys :
           {&errors_.key_ds2, &errors_.key_ds, &errors_.key_p2, &errors_.key_p, &errors_.shared_ds2,
            &errors_.shared_p2, &errors_.sum_ds, &errors_.sum_p})
        of_keys->resize(sums.key_p.size());
    }
    for (std::size_t row = 0; row < sums.key_p.size(); ++row) {
      const double queries = seen[row / (kv_heads * kv_len)][row % kv_len];
      if (queries == 0) continue;
      const double p = sums.key_p[row], p2 = sums.key_p2[row], ds = sums.key_ds[row], ds2 = sums.key_ds2[row];
      const double once = (chain(queries, kKeyChain) + 4) * square(kUnit) + 2 * ranks_ * square(g_) + f2();
      const double all_ds2 = square(partial_sum(ds, ds2)), all_p2 = square(partial_sum(p, p2));
      // What all queries of a key made of a latent row have in common.
      const double shared_ds2 = 2 * most.key2 * all_ds2 + 2 * square(dout_norm) * expansion_.v2 * all_p2 +
                                most.key2 * most.ds2 * all_p2,
                   shared_p2 = 2 * most.key2 * all_p2;
      const double of_ds2 = most.w2 * ds2 + most.row2 * p2 + once * all_ds2 + shared_ds2,
                   of_p2 = most.w2 * p2 + once * all_p2 + shared_p2;
      const double of_ds = 4 * most.c * ds + most.c_ds * p + 2 * dout_norm * v_norm_ * queries * kFlushed,
                   of_p = 2 * most.c * p + queries * kFlushed;
      t.dk.rows[row] = most_q * (kGrowth * std::sqrt(of_ds2) + of_ds) + least_steps(queries);
      t.dv.rows[row] = most_dout * (kGrowth * std::sqrt(of_p2) + of_p) + least_steps(queries);
      if (!p_.has_latent()) continue;
      errors_.key_ds2[row] = of_ds2, errors_.key_ds[row] = of_ds;
      errors_.key_p2[row] = of_p2, errors_.key_p[row] = of_p;
      errors_.shared_ds2[row] = shared_ds2, errors_.shared_p2[row] = shared_p2;
      errors_.sum_ds[row] = std::sqrt(all_ds2), errors_.sum_p[row] = std::sqrt(all_p2);
    }
  }

  // How many queries see each key, over the heads of the group, by batch entry.
  std::vector<std::vector<double>> queries_of_keys() const {
    std::vector<std::vector<double>> all;
    for (const std::vector<KeyInterval>& of_entry : keys_) {
      std::vector<double>& seen = all.emplace_back(static_cast<std::size_t>(p_.kv_len) + 1);
      for (const KeyInterval& allowed : of_entry) {
        seen[static_cast<std::size_t>(allowed.begin)] += static_cast<double>(p_.heads_per_kv());
        seen[static_cast<std::size_t>(allowed.end)] -= static_cast<double>(p_.heads_per_kv());
      }
      for (std::size_t key = 1; key < seen.size(); ++key) seen[key] += seen[key - 1];
      seen.pop_back();
    }
    return all;
  }

  const AttentionTestData& data_;
  const AttentionProblem& p_;
  const std::vector<std::vector<KeyInterval>> keys_;  // [batch][query]
  const double v_;
  const bool fused_forward_, fused_backward_;
  const bool chains_;  // whether the target's kernels have sums of two levels
  const double ranks_, g_, m_, d_, dv_, scale_, scale_error_;
  const double kept_;  // what dropout multiplies kept weights by
  const double sink_;  // the largest size of a sink
  const double most_v_;
  const std::vector<double> q_norms_;
  const double k_norm_, v_norm_;
  const ExpansionErrors expansion_;
  GradientErrors errors_;  // with latent rows: filled in by backward()
};

}  // namespace

AttentionTolerances attention_tolerances(const AttentionTestData& data, const AttentionRequest& request,
                                         bool backward, const Target& target) {
  Bounds bounds(data, request, target);
  AttentionTolerances tolerances;
  bounds.forward(tolerances);
  if (data.problem().has_latent()) bounds.expansion(tolerances);
  if (backward) bounds.backward(tolerances);
  return tolerances;
}

}  // namespace cp::sim
