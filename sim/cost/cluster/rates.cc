#include "sim/cost/cluster/rates.h"

#include <algorithm>

#include "sim/cost/cluster/blended.h"

namespace cp::sim {
namespace {

double or_else(double own, double otherwise) { return own > 0 ? own : otherwise; }

double us_per_pair(const AttentionRate& rate, double flops_per_pair, double speed) {
  return flops_per_pair / (rate.tflops * speed * 1e6);
}

}  // namespace

double attention_us(const AttentionRate& rate, const AttentionCall& shape, double flops_per_pair, int sms,
                    double speed) {
  const double tile = rate.tile_rows / (rate.shared_tiles ? shape.group : 1);
  double pairs = 0, longest = 0;
  const auto add = [&](const MaskPart& part, double startup) {
    if (part.rows == 0) return;
    const double rows = std::max(part.rows, tile * part.slices);
    pairs += rows * (part.pairs / part.rows + startup);
    longest = std::max(longest, part.most_keys + startup);
  };
  add(shape.full, or_else(rate.full_startup_keys, rate.startup_keys));
  add(shape.causal, rate.startup_keys);
  add(shape.window, or_else(rate.window_startup_keys, rate.startup_keys));
  const double us = us_per_pair(rate, flops_per_pair, speed);
  return rate.floor_us + blended(shape.heads * pairs * us, longest * rate.tile_rows * sms * us, rate.blend);
}

double least_attention_us(const AttentionRate& rate, double pairs, double rows, double most_keys,
                          double flops_per_pair, double speed) {
  const double startup = std::min({rate.startup_keys, or_else(rate.full_startup_keys, rate.startup_keys),
                                   or_else(rate.window_startup_keys, rate.startup_keys)});
  const double started = most_keys > 0 ? std::max(rows, pairs / most_keys) : rows;
  return (pairs + started * startup) * us_per_pair(rate, flops_per_pair, speed);
}

double product_us(const ProductRate& rate, double m, double n, double k, double hbm_gbps, double speed) {
  const double rows = std::max(m, ProductRate::kLeastSide), columns = std::max(n, ProductRate::kLeastSide);
  const double cool = 2 * rows * columns * (k + rate.startup_k) / (rate.tflops * speed * 1e6);
  const double heated = rate.sustained_us > 0 ? cool / (cool + rate.sustained_us) : 0;
  const double work = cool * (1 + heated * (1 / rate.sustained_share - 1));
  const double bytes_per_us = hbm_gbps * 1e3 * rate.memory_share, operand = rate.bits / 8.0;
  // Bytes of an element: the result is in 16 bits; a cast reads 16 bits and writes 8.
  constexpr double kResult = 2, kCast = 3;
  const double memory = ((m + n) * k * operand + m * n * kResult) / bytes_per_us;
  const double cast = rate.bits == 8 ? m * k * kCast / bytes_per_us : 0;
  return rate.floor_us + blended(work, memory, rate.blend) + cast;
}

}  // namespace cp::sim
