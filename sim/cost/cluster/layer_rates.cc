#include "sim/cost/cluster/layer_rates.h"

#include <algorithm>
#include <cmath>

#include "sim/cost/cluster/blended.h"

namespace cp::sim {

double expert_products_us(const ExpertRate& rate, const ExpertProducts& products, double hbm_gbps,
                          double speed) {
  const double rows = products.rows + products.active * rate.startup_rows;
  const double work = 2 * rows * products.n * (products.k + rate.startup_k) / (rate.tflops * speed * 1e6);
  const double operand = rate.bits / 8.0;
  constexpr double kResult = 2;  // bytes of an element
  const double bytes = products.active * products.n * products.k * operand +
                       products.rows * (products.k * operand + products.n * kResult);
  return blended(work, bytes / (hbm_gbps * 1e3 * rate.memory_share), rate.blend);
}

double expert_layer_us(const ExpertRate& rate, const ExpertLayer& layer, double hbm_gbps, double speed) {
  const auto products = [&](double n, double k) {
    return expert_products_us(rate, {layer.rows, layer.active, n, k}, hbm_gbps, speed);
  };
  constexpr double kElement = 2;  // bytes
  const double moved = rate.all_rows ? layer.tokens * layer.top_k : layer.rows;
  // Rows are sorted and added up, and read and written in between by the activation.
  const double bytes =
      kElement * (2 * moved * layer.hidden + 2 * layer.tokens * layer.hidden + 3 * moved * layer.columns);
  return rate.floor_us + products(2 * layer.columns, layer.hidden) + products(layer.hidden, layer.columns) +
         rate.row_passes * bytes / (hbm_gbps * 1e3);
}

double latent_us(const LatentRate& rate, const LatentCall& call, int sms, double hbm_gbps, double speed) {
  const double bytes_per_us = hbm_gbps * 1e3, cache_bytes = rate.cache_bits / 8.0;
  const double us_per_pair = 2.0 * (rate.qk_dim + rate.v_dim) / (rate.tflops * speed * 1e6);
  const double keys = call.keys + rate.startup_keys;
  if (rate.decode) {
    const double work = call.sequences * std::max(call.heads, rate.tile_rows) * keys * us_per_pair;
    const double memory =
        call.sequences * keys * rate.qk_dim * cache_bytes / (bytes_per_us * rate.memory_share);
    return rate.floor_us + blended(work, memory, rate.blend);
  }
  const double pairs = call.rows * call.keys - call.rows * (call.rows - 1) / 2;
  const double work = call.sequences * call.heads * std::max(call.rows, rate.tile_rows) *
                      (pairs / call.rows + rate.startup_keys) * us_per_pair;
  const double longest = keys * rate.tile_rows * us_per_pair * sms;
  const double moved = call.sequences * call.keys * call.heads * (rate.qk_dim + rate.v_dim) * 2;
  return rate.floor_us + blended(work, longest, rate.blend) + rate.cache_passes * moved / bytes_per_us;
}

LinearCall gated_delta_call(double sequences, double tokens, double key_heads, double value_heads,
                            double dim) {
  constexpr double kElement = 2, kState = 4;  // bytes: of 16-bit tokens, and of states in f32
  return {sequences, tokens, sequences * value_heads, kElement * dim * 2 * (key_heads + value_heads),
          2 * kState * value_heads * dim * dim};
}

LinearCall convolution_call(double sequences, double tokens, double channels) {
  // 16-bit elements; a convolution over four tokens keeps three as its state; 128 channels are one chain.
  constexpr double kElement = 2, kKept = 3, kChannels = 128;
  return {sequences, tokens, sequences * channels / kChannels, 2 * kElement * channels,
          2 * kElement * kKept * channels};
}

double linear_us(const LinearRate& rate, const LinearCall& call, int sms, double hbm_gbps) {
  const double rows = std::max(call.tokens, rate.tile_rows);
  const double chain = std::ceil(call.chains / (sms * rate.chains_at_once)) * rows * rate.token_us;
  const double bytes = rows * (call.sequences * call.token_bytes + call.chains * rate.stage_bytes) +
                       call.sequences * call.state_bytes;
  return rate.floor_us +
         blended(chain, rate.resident.us(bytes, hbm_gbps * 1e3 * rate.memory_share), rate.blend);
}

}  // namespace cp::sim
