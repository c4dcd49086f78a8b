// Rates of the kernels of serving software: products with weights that are stored in few bits, and
// all-reduces of their own instead of NCCL's. They are a part of Rates (sim/cost/cluster/rates.h), fitted to
// tables of measured times like the rest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/measured.h"
#include "sim/cost/cluster/source.h"

namespace cp::sim {

// [m, k] times [k, n] where both operands come in `bits`: weights are stored so, and the kernel before hands
// over its result so, by scales that are known beforehand. With
//     memory = the bytes of both operands, and of the result in 16 bits, at memory_share of the bandwidth
//     work   = 2 m n k / tflops
//     tile   = k us_per_k                     what a tile of the result takes, however few tiles there are
//     time   = floor_us + (memory^blend + work^blend + tile^blend)^(1 / blend)
struct StoredProductRate {
  static constexpr double kFewRows = 256;  // with at most so many rows (m), the rate with few_rows counts
  int bits = 16;                           // 16, 8 or 4
  bool few_rows = false;
  double floor_us = 0, tflops = 0, us_per_k = 0, memory_share = 0, blend = 1;
  Provenance provenance;
  LeftOut left_out;
  bool operator==(const StoredProductRate&) const = default;
};

// The times of an all-reduce of tensor-parallel ranks in one NVLink domain. Between two neighbouring points
// the time is a straight line; below the first point it is that of the first; beyond the last point it grows
// in proportion to the bytes.
struct AllReduceRate {
  std::string kernel;  // whose: "trtllm", "vllm", "sglang"
  int gpus = 0;
  std::vector<double> bytes, us;  // of the buffer, ascending; as many, and they do not fall
  Provenance provenance;
  bool operator==(const AllReduceRate&) const = default;
};

double stored_product_us(const StoredProductRate& rate, double m, double n, double k, double hbm_gbps,
                         double speed);
// Returns the rate for that many rows, or null if there is none with these bits.
const StoredProductRate* find_stored_product(const std::vector<StoredProductRate>& rates, int bits,
                                             double rows);
double all_reduce_us(const AllReduceRate& rate, double bytes);
const AllReduceRate* find_all_reduce(const std::vector<AllReduceRate>& rates, std::string_view kernel,
                                     int gpus);

}  // namespace cp::sim
