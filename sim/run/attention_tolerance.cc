#include "sim/run/attention_tolerance.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/run/attention_reference.h"

namespace cp::sim {
namespace {

constexpr double kGrowth = 4;

double roundoff(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

// The largest 2-norm of a row of `dim` values; of the products of two tensors where `other` is given.
double largest_row(const std::vector<double>& values, std::int64_t dim,
                   const std::vector<double>* other = nullptr) {
  double most = 0;
  const auto width = static_cast<std::size_t>(dim);
  for (std::size_t begin = 0; begin < values.size(); begin += width) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + width; ++i) {
      const double value = other == nullptr ? values[i] : values[i] * (*other)[i];
      sum += value * value;
    }
    most = std::max(most, sum);
  }
  return std::sqrt(most);
}

}  // namespace

AttentionTolerances attention_tolerances(const AttentionTestData& data, const AttentionRequest& request,
                                         bool backward) {
  const AttentionProblem& p = data.problem();
  const Strategy& strategy = request.strategy;
  const double u = 0x1p-24, v = roundoff(p.dtype);
  const double g = strategy.input_dtype_gradients ? v : u, m = strategy.input_dtype_merge ? v : u;
  const auto root = [](std::int64_t n) {
    return std::sqrt(static_cast<double>(std::max<std::int64_t>(n, 1)));
  };
  const double parts =
      2 * static_cast<double>(request.ranks.size());  // each is rounded where it is made and added
  const double scale = std::abs(p.scale()), lse = largest(data.lse());
  const double ds = kGrowth * root(p.head_dim) * u * scale * largest_row(data.q(), p.head_dim) *
                    largest_row(data.k(), p.head_dim);
  const double w = 2 * ds + (kGrowth * root(p.kv_len) + lse + 4) * u;
  const double max_v = largest(data.v());
  AttentionTolerances t;
  t.out = max_v * (w + parts * m + v);
  t.lse = w + (parts + 1) * u * std::max(1.0, lse);
  if (!backward) return t;
  const ReferenceBackward& reference = data.backward();
  const double norm_dout = largest_row(data.dout(), p.v_head_dim),
               norm_v = largest_row(data.v(), p.v_head_dim);
  const double e = kGrowth * (root(p.v_head_dim) * u * norm_dout * norm_v +
                              v * largest_row(data.dout(), p.v_head_dim, &data.out()));
  const double queries = static_cast<double>(p.heads_per_kv()) * static_cast<double>(p.q_len);
  const double wq = w + kGrowth * std::sqrt(std::max(1.0, queries)) * u;
  t.dq =
      scale * largest(data.k()) * (w * largest(reference.row_ds) + e) + (parts * g + v) * largest(data.dq());
  t.dk = scale * largest(data.q()) * (wq * largest(reference.key_ds) + e * largest(reference.key_p)) +
         (parts * g + v) * largest(data.dk());
  t.dv = largest(data.dout()) * wq * largest(reference.key_p) + (parts * g + v) * largest(data.dv());
  return t;
}

}  // namespace cp::sim
