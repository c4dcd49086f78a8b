// Times of the kernels of particular layers, as those of sim/cost/cluster/rates.h: the products of experts,
// latent attention (MLA), and linear attention (gated delta nets, and the short convolutions of these and of
// state spaces).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/measured.h"
#include "sim/cost/cluster/source.h"

namespace cp::sim {

// The products of a rank's experts, if one call computes all of them: each of `rows` rows is multiplied by
// one of `active` matrices [k, n].
//     work   = 2 (rows + active startup_rows) n (k + startup_k) / tflops       a tile of rows is computed whole
//     memory = the matrices of the active experts, the rows and the results, at memory_share of the bandwidth
//     time   = (work^blend + memory^blend)^(1 / blend)
// The tables measure a whole layer: two such calls (gate and up together; then down), floor_us for all its
// calls, and row_passes over the rows to sort, activate and add them up. A plan has kernels of its own for
// the rows, so row_passes is only used to predict the rows of the tables.
struct ExpertRate {
  std::string kernel;  // "triton", "cutlass", ...
  int bits = 16;       // of the operands: 16 or 8
  double floor_us = 0;
  double tflops = 0, startup_rows = 0, startup_k = 0, blend = 1, memory_share = 0;
  double row_passes = 0;
  // row_passes are over the rows of all ranks' experts: those of others are passed over one by one
  bool all_rows = false;
  Provenance provenance;
  LeftOut left_out;
  bool operator==(const ExpertRate&) const = default;
};

struct ExpertProducts {
  double rows = 0;    // of all experts of the rank
  double active = 0;  // experts that have a row, or more
  double n = 0, k = 0;
};
// Without its part of the floor. `speed`: of the GPU over that of the one that was measured.
double expert_products_us(const ExpertRate& rate, const ExpertProducts& products, double hbm_gbps,
                          double speed);
// Of each of the two calls.
inline double expert_floor_us(const ExpertRate& rate) { return rate.floor_us / 2; }

// A layer's experts on one rank, as the tables measure it: `tokens` choose top_k of all ranks' experts,
// `rows` of these choices are of the rank's, whose `active` ones have a row or more.
struct ExpertLayer {
  double tokens = 0, top_k = 0, rows = 0, active = 0, hidden = 0, columns = 0;
};
double expert_layer_us(const ExpertRate& rate, const ExpertLayer& layer, double hbm_gbps, double speed);

// Attention with keys and values of one low rank for all heads. A context's kernel has keys and values of
// each head (qk_dim, v_dim: 192, 128), and is timed as attention is: work and longest tile, with all query
// heads apart. Decoding absorbs the projections and reads what all heads share (576, of which 512 are values
// as well), at memory_share of the bandwidth:
//     work   = max(heads, tile_rows) (keys + startup_keys) sequences 2 (qk_dim + v_dim) / tflops
//     memory = sequences (keys + startup_keys) qk_dim cache_bits / 8
struct LatentRate {
  std::string kernel;
  bool decode = false;
  int cache_bits = 16;  // of the cache: 16 or 8
  int qk_dim = 0, v_dim = 0;
  double floor_us = 0, tflops = 0, startup_keys = 0, tile_rows = 0, blend = 1;
  double memory_share = 0;  // decode
  double cache_passes = 0;  // context: over its keys and values, beside the kernel
  Provenance provenance;
  LeftOut left_out;
  bool operator==(const LatentRate&) const = default;
};
struct LatentCall {
  double sequences = 0, heads = 0;
  double rows = 0,
         keys = 0;  // of a sequence; a context is causal and its last row sees all keys; decode: one row
};
double latent_us(const LatentRate& rate, const LatentCall& call, int sms, double hbm_gbps, double speed);

// A kernel that passes over tokens in their order and keeps a state: chains of tokens, each on a
// multiprocessor, and bytes:
//     chain  = ceil(chains / (sms chains_at_once)) rows token_us                   rows: max(tokens, tile_rows)
//     memory = (rows (sequences token_bytes + chains stage_bytes) + sequences state_bytes) / memory_share of
//     the bandwidth
//     time   = floor_us + (chain^blend + memory^blend)^(1 / blend)
struct LinearRate {
  std::string kernel;  // "gated_delta", "gated_delta_flashinfer", "convolution", ...
  bool decode = false;
  double floor_us = 0, token_us = 0, tile_rows = 1, blend = 1, memory_share = 0;
  double chains_at_once = 1;  // of a multiprocessor
  double stage_bytes = 0;     // of a token and chain, that the stages of a kernel hand on
  Resident resident;
  Provenance provenance;
  LeftOut left_out;
  bool operator==(const LinearRate&) const = default;
};
struct LinearCall {
  double sequences = 0, tokens = 0;         // of each
  double chains = 0;                        // that do not wait for one another: sequences x heads
  double token_bytes = 0, state_bytes = 0;  // of a token, and of a sequence's states, read and written
};
// What a gated delta net's kernel does: queries and keys of key_heads, values and results of value_heads,
// each of `dim` numbers in 16 bits, and of each value head a state of dim x dim numbers in f32.
LinearCall gated_delta_call(double sequences, double tokens, double key_heads, double value_heads,
                            double dim);
// A short convolution over `channels`, in 16 bits; its state are three tokens.
LinearCall convolution_call(double sequences, double tokens, double channels);
double linear_us(const LinearRate& rate, const LinearCall& call, int sms, double hbm_gbps);

}  // namespace cp::sim
