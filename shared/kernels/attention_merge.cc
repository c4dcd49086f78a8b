// The merge of two results over disjoint sets of keys, and the row sums that the gradients need.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"

namespace cp {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kRows = 32;  // at a time

// Calls f(begin, count) for some rows at a time.
template <class F>
void for_each_rows(std::int64_t rows, F&& f) {
  for (std::int64_t begin = 0; begin < rows; begin += kRows) f(begin, std::min(kRows, rows - begin));
}

// out = the merge of (out, lse) with (in, in_lse); returns the merged lse.
float merge_row(const float* in, float in_lse, float* out, float lse, std::int64_t dim) {
  if (in_lse == kNegativeInfinity) return lse;  // nothing to add; also keeps inf - inf away
  const float greatest = std::max(lse, in_lse);
  const float old_weight = std::exp(lse - greatest), new_weight = std::exp(in_lse - greatest);
  const float sum = old_weight + new_weight;
  const float old_factor = old_weight / sum, new_factor = new_weight / sum;
  for (std::int64_t d = 0; d < dim; ++d) out[d] = out[d] * old_factor + in[d] * new_factor;
  return greatest + std::log(sum);
}

}  // namespace

void run(const AttentionMerge& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t heads = kernel.out.shape[2], dim = kernel.out.shape[3];
  Floats in_values(kRows * dim), out_values(kRows * dim);
  std::array<float, kRows> in_lse_values, lse_values;
  for (std::int64_t batch = 0; batch < kernel.out.shape[0] && heads > 0; ++batch) {
    const HeadRows in(kernel.in, memory, iteration, batch, 0, heads),
        out(kernel.out, memory, iteration, batch, 0, heads);
    const HeadRows in_lse(as_rows(kernel.in_lse), memory, iteration, batch, 0, heads),
        lse(as_rows(kernel.lse), memory, iteration, batch, 0, heads);
    for_each_rows(out.size(), [&](std::int64_t begin, std::int64_t count) {
      in.load(begin, count, in_values.data(), dim), out.load(begin, count, out_values.data(), dim);
      in_lse.load(begin, count, in_lse_values.data(), 1), lse.load(begin, count, lse_values.data(), 1);
      for (std::int64_t i = 0; i < count; ++i) {
        float& row_lse = lse_values[static_cast<std::size_t>(i)];
        row_lse = merge_row(in_values.data() + i * dim, in_lse_values[static_cast<std::size_t>(i)],
                            out_values.data() + i * dim, row_lse, dim);
      }
      out.store(begin, count, out_values.data(), dim), lse.store(begin, count, lse_values.data(), 1);
    });
  }
}

void run(const AttentionDelta& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t heads = kernel.out.shape[2], dim = kernel.out.shape[3];
  Floats out_values(kRows * dim), dout_values(kRows * dim);
  std::array<float, kRows> sums;
  for (std::int64_t batch = 0; batch < kernel.out.shape[0] && heads > 0; ++batch) {
    const HeadRows out(kernel.out, memory, iteration, batch, 0, heads),
        dout(kernel.dout, memory, iteration, batch, 0, heads);
    const HeadRows delta(as_rows(kernel.delta), memory, iteration, batch, 0, heads);
    for_each_rows(out.size(), [&](std::int64_t begin, std::int64_t count) {
      out.load(begin, count, out_values.data(), dim), dout.load(begin, count, dout_values.data(), dim);
      for (std::int64_t i = 0; i < count; ++i) {
        sums[static_cast<std::size_t>(i)] =
            row_dot(out_values.data() + i * dim, dout_values.data() + i * dim, dim);
      }
      delta.store(begin, count, sums.data(), 1);
    });
  }
}

}  // namespace cp
