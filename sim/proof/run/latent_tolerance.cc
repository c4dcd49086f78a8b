#include "sim/proof/run/latent_tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "shared/base/index.h"
#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/error_sizes.h"

namespace cp::sim {
namespace {

constexpr double kUnitF32 = roundoff(DType::f32);

// The largest 2-norm of the first `count` elements of rows of `dim`.
double greatest_norm(const std::vector<double>& values, std::int64_t dim, std::int64_t count) {
  double most = 0;
  for (std::size_t begin = 0; begin + idx(dim) <= values.size(); begin += idx(dim)) {
    double norm = 0;
    for (std::size_t i = 0; i < idx(count); ++i) norm += square(values[begin + i]);
    most = std::max(most, norm);
  }
  return std::sqrt(most);
}

// Sizes of what a kv head's gradients are multiplied by.
struct HeadSizes {
  double q1 = 0, q_norm = 0, dout1 = 0;  // of its queries; scale and dropout are in them
  double q_w = 0, dout_w = 0;            // the largest elements of q W and dout W
  double k_column = 0, v_column = 0;     // the largest norms of columns of W
};

class Sizes {
 public:
  Sizes(const AttentionTestData& data, double kept)
      : data_(data), p_(data.problem()), rank_(p_.latent.rank), columns2_(idx(rank_)) {
    for (std::int64_t head = 0; head < p_.kv_heads; ++head) of_head_.push_back(sizes(head, kept));
    for (const double square : columns2_) column = std::max(column, square);
    column = std::sqrt(column);
    for (std::size_t row = 0; row < data.latent().size(); row += idx(p_.latent.dim())) {
      for (std::size_t i = 0; i < idx(rank_); ++i) c1 = std::max(c1, std::abs(data.latent()[row + i]));
    }
  }
  const HeadSizes& of(std::int64_t head) const { return of_head_[idx(head)]; }
  double column = 0;  // the largest norm of a column of the whole weight
  double c1 = 0;      // the largest element of latent rows, without what is rotated

 private:
  HeadSizes sizes(std::int64_t head, double kept) {
    HeadSizes s;
    const double scale = std::abs(p_.scale());
    const std::int64_t nope = p_.nope_dim(), dv = p_.v_head_dim;
    const double* const w = data_.kv_up().data() + head * p_.up_rows() * rank_;
    for (std::int64_t r = 0; r < rank_; ++r) {
      double of_key = 0, of_value = 0;
      for (std::int64_t row = 0; row < p_.up_rows(); ++row)
        (row < nope ? of_key : of_value) += square(w[row * rank_ + r]);
      s.k_column = std::max(s.k_column, std::sqrt(of_key));
      s.v_column = std::max(s.v_column, std::sqrt(of_value));
      columns2_[idx(r)] += of_key + of_value;
    }
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t h = head * p_.heads_per_kv(); h < (head + 1) * p_.heads_per_kv(); ++h) {
        for (std::int64_t i = 0; i < p_.q_len; ++i) {
          const std::int64_t row = (b * p_.q_heads + h) * p_.q_len + i;
          const double* const q = data_.q().data() + row * p_.head_dim;
          const double* const dout = data_.dout().data() + row * dv;
          double norm = 0;
          for (std::int64_t d = 0; d < p_.head_dim; ++d) {
            norm += square(q[d]);
            s.q1 = std::max(s.q1, scale * std::abs(q[d]));
          }
          s.q_norm = std::max(s.q_norm, scale * std::sqrt(norm));
          for (std::int64_t d = 0; d < dv; ++d) s.dout1 = std::max(s.dout1, kept * std::abs(dout[d]));
          s.q_w = std::max(s.q_w, scale * greatest_product(q, nope, w));
          s.dout_w = std::max(s.dout_w, kept * greatest_product(dout, dv, w + nope * rank_));
        }
      }
    }
    return s;
  }
  // Of a row of `rows` values by so many rows of the weight.
  double greatest_product(const double* values, std::int64_t rows, const double* w) {
    product_.assign(idx(rank_), 0);
    for (std::int64_t d = 0; d < rows; ++d) {
      for (std::int64_t r = 0; r < rank_; ++r) product_[idx(r)] += values[d] * w[d * rank_ + r];
    }
    return largest(product_);
  }

  const AttentionTestData& data_;
  const AttentionProblem& p_;
  const std::int64_t rank_;
  std::vector<HeadSizes> of_head_;
  std::vector<double> columns2_, product_;
};

class LatentBounds {
 public:
  LatentBounds(const AttentionTestData& data, const GradientErrors& errors)
      : p_(data.problem()),
        sums_(data.backward()),
        e_(errors),
        sizes_(data, errors.kept),
        v2_(square(roundoff(p_.dtype))),
        travel2_(2 * e_.ranks * square(e_.g)) {}

  // The tolerance of a latent row's gradient.
  double row(std::int64_t batch, std::int64_t key) const {
    Sum c, rotated;  // of the part that is contracted, and of the other one
    double sizes_c = 0, squares_c = 0, sizes_r = 0, squares_r = 0, products = 0;
    bool any = false;
    for (std::int64_t h = 0; h < p_.kv_heads; ++h) {
      const std::size_t at = idx((batch * p_.kv_heads + h) * p_.kv_len + key);
      if (e_.key_p2[at] == 0) continue;
      any = true;
      const HeadSizes& s = sizes_.of(h);
      c.squares +=
          square(s.q_w) * e_.key_ds2[at] + square(s.dout_w) * e_.key_p2[at] +
          v2_ * (square(s.k_column * s.q1 * e_.sum_ds[at]) + square(s.v_column * s.dout1 * e_.sum_p[at]));
      c.linear += s.q_w * e_.key_ds[at] + s.dout_w * e_.key_p[at];
      rotated.squares += square(s.q1) * (e_.key_ds2[at] + v2_ * square(e_.sum_ds[at]));
      rotated.linear += s.q1 * e_.key_ds[at];
      sizes_c += s.q_w * sums_.key_ds[at] + s.dout_w * sums_.key_p[at];
      squares_c += square(s.q_w) * sums_.key_ds2[at] + square(s.dout_w) * sums_.key_p2[at];
      sizes_r += s.q1 * sums_.key_ds[at];
      squares_r += square(s.q1) * sums_.key_ds2[at];
      products += square(s.q_norm * e_.sum_ds[at]) +
                  static_cast<double>(p_.v_head_dim) * square(s.dout1 * e_.sum_p[at]);
    }
    if (!any) return 0;
    const double heads = static_cast<double>(p_.kv_heads), terms = heads * static_cast<double>(p_.up_rows());
    const double added2 = travel2_ + (e_.ranks + std::log2(heads) + 1) * square(kUnitF32);
    c.squares += (terms + 2) * square(kUnitF32 * sizes_.column) * products +
                 added2 * square(std::min(sizes_c, kGrowth * std::sqrt(squares_c)));
    rotated.squares += added2 * square(std::min(sizes_r, kGrowth * std::sqrt(squares_r)));
    const double lost = kGrowth * std::sqrt(e_.ranks + 1) * half_least_step(p_.dtype);
    return std::max(c.error() + lost * (sizes_.column * std::sqrt(terms) + 1),
                    rotated.error() + lost * (std::sqrt(heads) + 1));
  }

  // The tolerance of the elements of a head's rows of the weight's gradient, whatever part of it a rank
  // makes.
  double weight(std::int64_t head) const {
    const HeadSizes& s = sizes_.of(head);
    Sum of_keys, of_values;
    double keys = 0, ds = 0, ds2 = 0, p = 0, p2 = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t h = head * p_.heads_per_kv(); h < (head + 1) * p_.heads_per_kv(); ++h) {
        for (std::int64_t i = 0; i < p_.q_len; ++i) {
          const std::size_t at = idx((b * p_.q_heads + h) * p_.q_len + i);
          of_keys.squares += e_.row_ds2[at], of_keys.linear += e_.row_ds[at];
          of_values.squares += e_.row_p2[at], of_values.linear += e_.row_p[at];
        }
      }
      for (std::int64_t j = 0; j < p_.kv_len; ++j) {
        const std::size_t at = idx((b * p_.kv_heads + head) * p_.kv_len + j);
        if (e_.key_p2[at] == 0) continue;
        of_keys.squares += e_.shared_ds2[at] + (v2_ + travel2_) * square(e_.sum_ds[at]);
        of_values.squares += e_.shared_p2[at] + (v2_ + travel2_) * square(e_.sum_p[at]);
        ds += e_.sum_ds[at], ds2 += square(e_.sum_ds[at]);
        p += e_.sum_p[at], p2 += square(e_.sum_p[at]);
        keys += 1;
      }
    }
    // The product adds up over keys, block after block.
    const double terms = (keys + e_.ranks + 2) * square(kUnitF32);
    of_keys.squares += terms * square(std::min(ds, kGrowth * std::sqrt(ds2)));
    of_values.squares += terms * square(std::min(p, kGrowth * std::sqrt(p2)));
    const double lost = kGrowth * std::sqrt(keys * (e_.ranks + 1)) * half_least_step(p_.dtype) * sizes_.c1;
    return sizes_.c1 * std::max(s.q1 * of_keys.error(), s.dout1 * of_values.error()) + lost;
  }

 private:
  struct Sum {
    double squares = 0, linear = 0;
    double error() const { return kGrowth * std::sqrt(squares) + linear; }
  };

  const AttentionProblem& p_;
  const ReferenceBackward& sums_;
  const GradientErrors& e_;
  const Sizes sizes_;
  const double v2_, travel2_;
};

}  // namespace

ExpansionErrors expansion_errors(const AttentionTestData& data) {
  const AttentionProblem& p = data.problem();
  if (!p.has_latent()) return {};
  const double rank = static_cast<double>(p.latent.rank), v = roundoff(p.dtype),
               product =
                   (rank + 2) * square(kUnitF32 * greatest_norm(data.kv_up(), p.latent.rank, p.latent.rank) *
                                       greatest_norm(data.latent(), p.latent.dim(), p.latent.rank));
  const double kept = 1 / (1 - p.dropout.probability);
  const auto error = [&](const std::vector<double>& tensor) {
    return product + square(v * largest(tensor)) + square(half_least_step(p.dtype));
  };
  return {error(data.k()), square(kept) * error(data.v())};
}

LatentTolerances latent_tolerances(const AttentionTestData& data, const GradientErrors& errors) {
  const AttentionProblem& p = data.problem();
  const LatentBounds bounds(data, errors);
  LatentTolerances tolerances;
  tolerances.dlatent = {{}, roundoff(p.dtype), half_least_step(p.dtype)};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t key = 0; key < p.kv_len; ++key) tolerances.dlatent.rows.push_back(bounds.row(b, key));
  }
  for (std::int64_t head = 0; head < p.kv_heads; ++head) tolerances.dkv_up.push_back(bounds.weight(head));
  return tolerances;
}

}  // namespace cp::sim
