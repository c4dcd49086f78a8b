// Attention of queries against keys, and the merge of two such results over disjoint sets of keys.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"

namespace cp {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// One query row: out = softmax(scale q k) v over the given keys; returns the row's lse. `scores` is scratch.
float attend(std::span<const float> q, const Rows& k, const Rows& v, std::span<const KeyRange> keys,
             float scale, std::vector<float>& scores, std::span<float> out) {
  scores.clear();
  float greatest = kNegativeInfinity;
  for (const KeyRange& range : keys) {
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      scores.push_back(scale * dot(q, k[j]));
      greatest = std::max(greatest, scores.back());
    }
  }
  std::ranges::fill(out, 0.0f);
  if (greatest == kNegativeInfinity) return kNegativeInfinity;
  float sum = 0;
  std::size_t next = 0;
  for (const KeyRange& range : keys) {
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      const float weight = std::exp(scores[next++] - greatest);
      sum += weight;
      add_scaled(weight, v[j], out);
    }
  }
  for (float& value : out) value /= sum;
  return greatest + std::log(sum);
}

}  // namespace

void run(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t batches = kernel.q.shape[0], q_heads = kernel.q.shape[2], kv_heads = kernel.k.shape[2];
  const float scale = static_cast<float>(kernel.softmax_scale);
  std::vector<KeyRange> keys;
  std::vector<float> scores;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    for (std::int64_t head = 0; head < q_heads; ++head) {
      const std::int64_t kv_head = head / (q_heads / kv_heads);
      const Rows q = Rows::load(kernel.q, memory, iteration, batch, head);
      const Rows k = Rows::load(kernel.k, memory, iteration, batch, kv_head);
      const Rows v = Rows::load(kernel.v, memory, iteration, batch, kv_head);
      Rows out(q.seq_len(), kernel.out.shape[3]);
      for (std::int64_t i = 0; i < q.seq_len(); ++i) {
        keys_of(kernel.slices, i, keys);
        row_statistic(kernel.lse, memory, iteration, {batch, i, head}) =
            attend(q[i], k, v, keys, scale, scores, out[i]);
      }
      out.store(kernel.out, memory, iteration, batch, head, false);
    }
  }
}

void run(const AttentionMerge& kernel, const HostMemory& memory, std::int64_t iteration) {
  for (std::int64_t batch = 0; batch < kernel.out.shape[0]; ++batch) {
    for (std::int64_t head = 0; head < kernel.out.shape[2]; ++head) {
      const Rows in = Rows::load(kernel.in, memory, iteration, batch, head);
      Rows out = Rows::load(kernel.out, memory, iteration, batch, head);
      for (std::int64_t i = 0; i < out.seq_len(); ++i) {
        const float in_lse = row_statistic(kernel.in_lse, memory, iteration, {batch, i, head});
        float& lse = row_statistic(kernel.lse, memory, iteration, {batch, i, head});
        if (in_lse == kNegativeInfinity) continue;  // nothing to add; also keeps inf - inf away
        const float greatest = std::max(lse, in_lse);
        const float old_weight = std::exp(lse - greatest), new_weight = std::exp(in_lse - greatest);
        const float sum = old_weight + new_weight;
        for (float& value : out[i]) value *= old_weight / sum;
        add_scaled(new_weight / sum, in[i], out[i]);
        lse = greatest + std::log(sum);
      }
      out.store(kernel.out, memory, iteration, batch, head, false);
    }
  }
}

}  // namespace cp
