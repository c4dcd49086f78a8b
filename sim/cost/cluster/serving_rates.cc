#include "sim/cost/cluster/serving_rates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace cp::sim {

double stored_product_us(const StoredProductRate& rate, double m, double n, double k, double hbm_gbps,
                         double speed) {
  constexpr double kResult = 2;  // bytes of an element
  const double operand = rate.bits / 8.0, bytes_per_us = hbm_gbps * 1e3 * rate.memory_share;
  const double memory = ((m + n) * k * operand + m * n * kResult) / bytes_per_us,
               work = 2 * m * n * k / (rate.tflops * speed * 1e6), tile = k * rate.us_per_k;
  const double most = std::max({memory, work, tile});
  if (most <= 0) return rate.floor_us;
  const auto part = [&](double us) { return std::pow(us / most, rate.blend); };
  return rate.floor_us + most * std::pow(part(memory) + part(work) + part(tile), 1 / rate.blend);
}

const StoredProductRate* find_stored_product(const std::vector<StoredProductRate>& rates, int bits,
                                             double rows) {
  const bool few = rows <= StoredProductRate::kFewRows;
  const StoredProductRate* other = nullptr;
  for (const StoredProductRate& rate : rates) {
    if (rate.bits != bits) continue;
    if (rate.few_rows == few) return &rate;
    other = &rate;
  }
  return other;
}

double all_reduce_us(const AllReduceRate& rate, double bytes) {
  if (bytes <= rate.bytes.front()) return rate.us.front();
  if (bytes >= rate.bytes.back()) return rate.us.back() * bytes / rate.bytes.back();
  const auto right = static_cast<std::size_t>(std::upper_bound(rate.bytes.begin(), rate.bytes.end(), bytes) -
                                              rate.bytes.begin());
  const double share = (bytes - rate.bytes[right - 1]) / (rate.bytes[right] - rate.bytes[right - 1]);
  return rate.us[right - 1] + share * (rate.us[right] - rate.us[right - 1]);
}

const AllReduceRate* find_all_reduce(const std::vector<AllReduceRate>& rates, std::string_view kernel,
                                     int gpus) {
  const auto found = std::find_if(rates.begin(), rates.end(), [&](const AllReduceRate& rate) {
    return rate.kernel == kernel && rate.gpus == gpus;
  });
  return found == rates.end() ? nullptr : &*found;
}

}  // namespace cp::sim
