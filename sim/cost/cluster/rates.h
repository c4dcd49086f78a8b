// Times of a GPU's kernels from few physical numbers, which were fitted to tables of measured times. Where a
// cluster has none for a kernel, curves (sim/cost/cluster/cluster.h) or shares of the peak stand in.
//
// Attention computes tiles of query rows. With P pairs and R rows, of all heads, and c the time of a pair,
//     work    = (P + R startup_keys) c                            c = flops of a pair / tflops
//     longest = (most keys of a row + startup_keys) tile_rows sms c      what one multiprocessor needs for
//     its longest tile
//     time    = floor_us + (work^blend + longest^blend)^(1 / blend)
// so that many rows of many keys come close to tflops, rows of few keys pay for starting, and few tiles leave
// multiprocessors idle. A slice whose rows do not fill a tile counts as a whole one; a tile holds rows of all
// query heads of a kv head where they share tiles. A mask without a diagonal, and a window, have startup keys
// of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/layer_rates.h"
#include "sim/cost/cluster/measured.h"
#include "sim/cost/cluster/serving_rates.h"
#include "sim/cost/cluster/source.h"

namespace cp::sim {

struct AttentionRate {
  std::string kernel;  // "fa2", "fa3", "cudnn", "trtllm", ...
  bool backward = false;
  int head_dim = 0;
  int bits = 16;        // of queries, keys and values: 16 or 8
  double floor_us = 0;  // of a call, its launch included
  // The rate that long rows approach. It counts the pairs that the mask allows: 4 flops for each pair and
  // head dimension, backward 10.
  double tflops = 0;
  double startup_keys = 0;                                // of a causal mask
  double full_startup_keys = 0, window_startup_keys = 0;  // 0: as startup_keys
  double tile_rows = 0;
  bool shared_tiles = false;  // query heads of a kv head share tiles
  double blend = 1;           // >= 1; 1: the times add up, more: the longer one hides the other
  // What the measured calls spend on their cache of keys and values beside the kernel: passes over the keys
  // and values, and a time that does not depend on their size. Only used to predict the rows of the table.
  double cache_passes = 0, cache_us = 0;
  Resident resident;  // of these passes
  Provenance provenance;
  LeftOut left_out;
  bool operator==(const AttentionRate&) const = default;
};

// Attention of few query rows against many keys (decoding). It takes floor_us, and then the time to read keys
// and values: (keys + startup_keys) times the bytes of a key and value of all sequences and kv heads, at
// memory_share of the bandwidth.
struct DecodeRate {
  std::string kernel;
  int head_dim = 0;
  double floor_us = 0, startup_keys = 0, memory_share = 0;
  // If a kv head has more query heads than widest_group, another kernel takes over, which reads the keys
  // wide_passes times. 0: there is no such kernel.
  int widest_group = 0;
  double wide_passes = 0;
  Resident resident;  // of keys and values
  double passes(double group) const { return widest_group > 0 && group > widest_group ? wide_passes : 1; }
  Provenance provenance;
  LeftOut left_out;
  int cache_bits = 16;  // of a cached element: 16 or 8
  bool operator==(const DecodeRate&) const = default;
};

// [m, k] times [k, n]: floor_us + (work^blend + memory^blend)^(1 / blend), where work is 2 m n (k +
// startup_k) / tflops, with m and n of at least kLeastSide, and memory what both operands and the result take
// at memory_share of the bandwidth. With 8 bits the left operand is cast before: read in 16 bits and written
// in 8.
struct ProductRate {
  static constexpr double kLeastSide = 64;
  int bits = 16;
  double floor_us = 0, tflops = 0, startup_k = 0, blend = 1, memory_share = 0;
  // Under the power limit: calls whose work is much longer than sustained_us reach sustained_share of tflops.
  // 0: all reach it.
  double sustained_share = 1, sustained_us = 0;
  Provenance provenance;
  LeftOut left_out;
  bool operator==(const ProductRate&) const = default;
};

struct Rates {
  std::string gpu;
  double tflops_16 = 0, hbm_gbps = 0;  // of that GPU
  int sms = 0;
  std::vector<AttentionRate> attention;  // the first kernel is the one of software that names none
  std::vector<DecodeRate> decode;
  std::vector<ProductRate> product;
  std::vector<ExpertRate>
      experts;  // of each precision, the first kernel is the one of software that names none
  std::vector<LatentRate> latent;
  std::vector<LinearRate> linear;
  std::vector<StoredProductRate> stored_product;  // of software that serves (serving_rates.h)
  std::vector<AllReduceRate> all_reduce;
  bool empty() const { return attention.empty() && decode.empty() && product.empty(); }
  bool operator==(const Rates&) const = default;
};

// Slices of one kind in one head: their pairs, query rows, number, and the most keys that one row sees.
struct MaskPart {
  double pairs = 0, rows = 0, slices = 0, most_keys = 0;
};
struct AttentionCall {
  double heads = 0;  // query heads of all sequences
  double group = 1;  // query heads of a kv head
  MaskPart full, causal, window;
};

// Of one kernel that does all of it. `speed`: of the GPU over that of the one that was measured.
double attention_us(const AttentionRate& rate, const AttentionCall& shape, double flops_per_pair, int sms,
                    double speed);
// A lower bound of the time of any kernels that compute so many pairs. `rows` are the query rows of all
// heads, each of which is computed at least once, and none against more than `most_keys` keys in one kernel.
// 0 rows means that their number is not known.
double least_attention_us(const AttentionRate& rate, double pairs, double rows, double most_keys,
                          double flops_per_pair, double speed);

double product_us(const ProductRate& rate, double m, double n, double k, double hbm_gbps, double speed);

}  // namespace cp::sim
