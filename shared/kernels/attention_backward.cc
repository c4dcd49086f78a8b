// Gradients of attention: with p = exp(scale q k - lse), ds = p (dout v - delta) scale,
//   dq = sum over keys ds k,   dk = sum over queries ds q,   dv = sum over queries p dout.
// Dao et al., "FlashAttention" (2022), appendix B.2.
#include <cmath>
#include <limits>
#include <vector>

#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"

namespace cp {
namespace {

// What one query row of one head knows.
struct QueryRow {
  std::span<const float> q, dout;
  float lse = 0, delta = 0;
};

void add_gradients(const QueryRow& row, const Rows& k, const Rows& v, std::span<const KeyRange> keys,
                   float scale, std::span<float> dq, Rows& dk, Rows& dv) {
  if (row.lse == -std::numeric_limits<float>::infinity()) return;  // no key had any weight
  for (const KeyRange& range : keys) {
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      const float p = std::exp(scale * dot(row.q, k[j]) - row.lse);
      const float ds = p * (dot(row.dout, v[j]) - row.delta) * scale;
      add_scaled(ds, k[j], dq);
      add_scaled(ds, row.q, dk[j]);
      add_scaled(p, row.dout, dv[j]);
    }
  }
}

}  // namespace

void run(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::int64_t q_heads = kernel.q.shape[2], kv_heads = kernel.k.shape[2];
  if (kv_heads == 0) return;
  const std::int64_t heads_per_kv = q_heads / kv_heads;
  const float scale = static_cast<float>(kernel.softmax_scale);
  std::vector<KeyRange> keys;
  for (std::int64_t batch = 0; batch < kernel.q.shape[0]; ++batch) {
    for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const Rows k = Rows::load(kernel.k, memory, iteration, batch, kv_head);
      const Rows v = Rows::load(kernel.v, memory, iteration, batch, kv_head);
      Rows dk(k.seq_len(), kernel.k.shape[3]), dv(v.seq_len(), kernel.v.shape[3]);
      for (std::int64_t head = kv_head * heads_per_kv; head < (kv_head + 1) * heads_per_kv; ++head) {
        const Rows q = Rows::load(kernel.q, memory, iteration, batch, head);
        const Rows dout = Rows::load(kernel.dout, memory, iteration, batch, head);
        Rows dq(q.seq_len(), kernel.q.shape[3]);
        for (std::int64_t i = 0; i < q.seq_len(); ++i) {
          const RowIndex index{batch, i, head};
          const QueryRow row{q[i], dout[i], row_statistic(kernel.lse, memory, iteration, index),
                             row_statistic(kernel.delta, memory, iteration, index)};
          keys_of(kernel.slices, i, keys);
          add_gradients(row, k, v, keys, scale, dq[i], dk, dv);
        }
        dq.store(kernel.dq, memory, iteration, batch, head, kernel.accumulate_dq);
      }
      dk.store(kernel.dk, memory, iteration, batch, kv_head, kernel.accumulate_dkv);
      dv.store(kernel.dv, memory, iteration, batch, kv_head, kernel.accumulate_dkv);
    }
  }
}

void run(const AttentionDelta& kernel, const HostMemory& memory, std::int64_t iteration) {
  for (std::int64_t batch = 0; batch < kernel.out.shape[0]; ++batch) {
    for (std::int64_t head = 0; head < kernel.out.shape[2]; ++head) {
      const Rows out = Rows::load(kernel.out, memory, iteration, batch, head);
      const Rows dout = Rows::load(kernel.dout, memory, iteration, batch, head);
      for (std::int64_t i = 0; i < out.seq_len(); ++i) {
        row_statistic(kernel.delta, memory, iteration, {batch, i, head}) = dot(out[i], dout[i]);
      }
    }
  }
}

}  // namespace cp
