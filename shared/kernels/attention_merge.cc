// The merge of results over disjoint sets of keys, the sum of gradients, and the row sums that the gradients
// need.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"

namespace cp {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();  // the lse of a row that no key reaches
// Rows that are loaded, merged and stored at a time. Chosen: with a dim of 128 they are 16 KiB for each
// operand, so that all operands of a merge stay in the second-level cache.
constexpr std::int64_t kRowsAtOnce = 32;

// Calls f(begin, count) for some rows at a time.
template <class F>
void for_each_rows(std::int64_t rows, F&& f) {
  for (std::int64_t begin = 0; begin < rows; begin += kRowsAtOnce)
    f(begin, std::min(kRowsAtOnce, rows - begin));
}

// Some rows of a result, with their lse where there is any.
class Rows {
 public:
  Rows(const View& values, const View& lse, const HostMemory& memory, std::int64_t iteration,
       std::int64_t batch)
      : dim_(values.shape[3]),
        rows_(kRowsAtOnce * dim_),
        at_(values, memory, iteration, batch, 0, values.shape[2]) {
    if (!is_absent(lse)) lse_at_.emplace(as_rows(lse), memory, iteration, batch, 0, values.shape[2]);
  }

  std::int64_t size() const { return at_.size(); }
  void load(std::int64_t begin, std::int64_t count) {
    at_.load(begin, count, rows_.data(), dim_);
    if (lse_at_) lse_at_->load(begin, count, lse_.data(), 1);
  }
  void store(std::int64_t begin, std::int64_t count) const {
    at_.store(begin, count, rows_.data(), dim_);
    if (lse_at_) lse_at_->store(begin, count, lse_.data(), 1);
  }
  float* row(std::int64_t i) { return rows_.data() + i * dim_; }
  float& lse(std::int64_t i) { return lse_[static_cast<std::size_t>(i)]; }

 private:
  std::int64_t dim_;
  Floats rows_;
  std::array<float, kRowsAtOnce> lse_{};
  HeadRows at_;
  std::optional<HeadRows> lse_at_;
};

// Row i of `out` = its merge with that of the parts, each times its share of the weights. In double, but for
// what is stored: a rounded share would be an error of all values of the row alike, and a merge for each part
// of a long sequence would add them up.
void merge_row(std::vector<Rows>& parts, Rows& out, std::int64_t i, std::int64_t dim, double* sums) {
  const auto has_keys = [i](Rows& part) { return part.lse(i) != kNoKeys; };
  float greatest = out.lse(i);
  for (Rows& part : parts) greatest = std::max(greatest, part.lse(i));
  // Nothing to add; also keeps inf - inf away.
  if (std::none_of(parts.begin(), parts.end(), has_keys)) return;
  const auto weight = [&](Rows& part) {
    return std::exp(static_cast<double>(part.lse(i)) - static_cast<double>(greatest));
  };
  double sum = weight(out);
  for (Rows& part : parts) {
    if (has_keys(part)) sum += weight(part);
  }
  float* const row = out.row(i);
  const double old_factor = weight(out) / sum;
  for (std::int64_t d = 0; d < dim; ++d) sums[d] = static_cast<double>(row[d]) * old_factor;
  for (Rows& part : parts) {
    if (!has_keys(part)) continue;
    const double factor = weight(part) / sum;
    const float* const added = part.row(i);
    for (std::int64_t d = 0; d < dim; ++d) sums[d] += static_cast<double>(added[d]) * factor;
  }
  for (std::int64_t d = 0; d < dim; ++d) row[d] = static_cast<float>(sums[d]);
  out.lse(i) = static_cast<float>(static_cast<double>(greatest) + std::log(sum));
}

void add_rows(std::vector<Rows>& parts, Rows& out, std::int64_t i, std::int64_t dim) {
  for (Rows& part : parts) {
    for (std::int64_t d = 0; d < dim; ++d) out.row(i)[d] += part.row(i)[d];
  }
}

}  // namespace

void run(const AttentionMerge& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t heads = kernel.out.shape[2], dim = kernel.out.shape[3];
  const bool has_lse = !is_absent(kernel.lse);
  std::vector<double> sums(static_cast<std::size_t>(has_lse ? dim : 0));
  for (std::int64_t batch = 0; batch < kernel.out.shape[0] && heads > 0; ++batch) {
    std::vector<Rows> parts;
    parts.reserve(1 + kernel.more.size());
    parts.emplace_back(kernel.in, kernel.in_lse, memory, iteration, batch);
    for (std::size_t i = 0; i < kernel.more.size(); ++i)
      parts.emplace_back(kernel.more[i], has_lse ? kernel.more_lse[i] : View{}, memory, iteration, batch);
    Rows out(kernel.out, kernel.lse, memory, iteration, batch);
    for_each_rows(out.size(), [&](std::int64_t begin, std::int64_t count) {
      for (Rows& part : parts) part.load(begin, count);
      out.load(begin, count);
      for (std::int64_t i = 0; i < count; ++i)
        has_lse ? merge_row(parts, out, i, dim, sums.data()) : add_rows(parts, out, i, dim);
      out.store(begin, count);
    });
  }
}

void run(const AttentionDelta& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t heads = kernel.out.shape[2], dim = kernel.out.shape[3];
  Floats out_values(kRowsAtOnce * dim), dout_values(kRowsAtOnce * dim);
  std::array<float, kRowsAtOnce> sums;
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

// In double: a sum over all rows of a long sequence.
void run(const AttentionSinkGradient& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t heads = kernel.out.shape[2], dim = kernel.out.shape[3];
  Floats out_values(kRowsAtOnce * dim), dout_values(kRowsAtOnce * dim);
  std::array<float, kRowsAtOnce> lse_values;
  const float* const sinks = reinterpret_cast<const float*>(memory.at(kernel.sinks, iteration));
  float* const dsinks = reinterpret_cast<float*>(memory.at(kernel.dsinks, iteration));
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto sink = static_cast<double>(sinks[head * kernel.sinks.strides[0]]);
    double sum = 0;
    for (std::int64_t batch = 0; batch < kernel.out.shape[0]; ++batch) {
      const HeadRows out(kernel.out, memory, iteration, batch, head, 1),
          dout(kernel.dout, memory, iteration, batch, head, 1),
          lse(as_rows(kernel.lse), memory, iteration, batch, head, 1);
      for_each_rows(out.size(), [&](std::int64_t begin, std::int64_t count) {
        out.load(begin, count, out_values.data(), dim), dout.load(begin, count, dout_values.data(), dim);
        lse.load(begin, count, lse_values.data(), 1);
        for (std::int64_t i = 0; i < count; ++i) {
          const double weight = std::exp(sink - static_cast<double>(lse_values[static_cast<std::size_t>(i)]));
          sum -= weight *
                 static_cast<double>(row_dot(out_values.data() + i * dim, dout_values.data() + i * dim, dim));
        }
      });
    }
    dsinks[head * kernel.dsinks.strides[0]] = static_cast<float>(sum);
  }
}

}  // namespace cp
