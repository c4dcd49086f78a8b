// Gradients of attention: with p = exp(scale q k - lse), ds = p (dout v - delta) scale,
//   dq = sum over keys ds k,   dk = sum over queries ds q,   dv = sum over queries p dout.
// Dao et al., "FlashAttention" (2022), appendix B.2.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "shared/kernels/attention.h"
#include "shared/kernels/attention_mask.h"
#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"

namespace cp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kTileKeys = 128;  // p and ds of 48 queries are 48 KiB

// The rows of one panel, twice: as rows, padded to whole vectors, and as columns.
struct PanelRows {
  PanelRows(std::int64_t row_dim, const TileKernels& tiles)
      : dim(row_dim),
        width(tiles.width()),
        row_size(round_up(dim, tiles.lanes)),
        rows(width * row_size),
        columns(width * dim) {}

  // Rows that are not wanted are zeros, whatever they hold.
  void load(const HeadRows& from, std::int64_t begin, std::uint64_t wanted) {
    std::fill_n(rows.data(), width * row_size, 0.0f);
    for (std::int64_t row = 0; row < width; ++row) {
      if ((wanted >> row & 1) != 0) from.load(begin + row, 1, rows.data() + row * row_size, row_size);
    }
    transpose(rows.data(), row_size, width, dim, columns.data(), width);
  }

  const std::int64_t dim, width, row_size;
  Floats rows, columns;
};

// The deltas of rows: those given, or of a fused step made of out and dout.
class RowDeltas {
 public:
  RowDeltas(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration,
            std::int64_t batch, std::int64_t first_head, std::int64_t heads)
      : fused_(kernel.engine == AttentionEngine::fused),
        given_(fused_ ? kernel.out : as_rows(kernel.delta), memory, iteration, batch, first_head, heads),
        dout_(kernel.dout, memory, iteration, batch, first_head, heads),
        values_(fused_ ? 2 * dout_.dim() : 0) {}

  void load(std::int64_t begin, std::int64_t count, float* deltas) const {
    if (!fused_) return given_.load(begin, count, deltas, 1);
    float *out = values_.data(), *dout = out + dout_.dim();
    for (std::int64_t row = 0; row < count; ++row) {
      given_.load(begin + row, 1, out, dout_.dim()), dout_.load(begin + row, 1, dout, dout_.dim());
      deltas[row] = row_dot(out, dout, dout_.dim());
    }
  }

 private:
  const bool fused_;
  const HeadRows given_, dout_;  // given: delta, or out
  mutable Floats values_;        // a row of out and one of dout
};

// The gradients of one batch and key head.
class BackwardPart {
 public:
  BackwardPart(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration,
               std::int64_t part, const TileKernels& tiles, PanelMask& mask)
      : kernel_(kernel),
        tiles_(tiles),
        mask_(mask),
        scale_(static_cast<float>(kernel.softmax_scale)),
        batch_(part / kernel.k.shape[2]),
        kv_head_(part % kernel.k.shape[2]),
        heads_(kernel.q.shape[2] / kernel.k.shape[2]),
        q_(kernel.q, memory, iteration, batch_, kv_head_ * heads_, heads_),
        dout_(kernel.dout, memory, iteration, batch_, kv_head_ * heads_, heads_),
        lse_(as_rows(kernel.lse), memory, iteration, batch_, kv_head_ * heads_, heads_),
        delta_(kernel, memory, iteration, batch_, kv_head_ * heads_, heads_),
        k_({kernel.k, memory, iteration, batch_, kv_head_, 1}, tiles, kTileKeys, PackedRows::For::both),
        v_({kernel.v, memory, iteration, batch_, kv_head_, 1}, tiles, kTileKeys, PackedRows::For::dim_sums),
        queries_(q_.dim(), tiles),
        douts_(dout_.dim(), tiles),
        padded_dim_(round_up(q_.dim(), tiles.panel_rows)),
        dq_columns_(width_ * padded_dim_),
        dq_rows_(width_ * padded_dim_),
        scores_(width_ * std::min(kTileKeys, padded_keys_)),
        products_(width_ * std::min(kTileKeys, padded_keys_)),
        dk_sums_(padded_keys_ * queries_.row_size),
        dv_sums_(padded_keys_ * douts_.row_size),
        row_lse_(width_),
        row_delta_(width_) {
    if (!is_absent(kernel.dq)) dq_.emplace(kernel.dq, memory, iteration, batch_, kv_head_ * heads_, heads_);
    if (!is_absent(kernel.dk)) dk_.emplace(kernel.dk, memory, iteration, batch_, kv_head_, 1);
    if (!is_absent(kernel.dv)) dv_.emplace(kernel.dv, memory, iteration, batch_, kv_head_, 1);
  }

  void run() {
    if (dk_) std::fill_n(dk_sums_.data(), padded_keys_ * queries_.row_size, 0.0f);
    if (dv_) std::fill_n(dv_sums_.data(), padded_keys_ * douts_.row_size, 0.0f);
    for (std::int64_t panel = 0; panel < mask_.panels(); ++panel) {
      mask_.select(panel);
      const std::int64_t begin = panel * width_, count = std::min(width_, q_.size() - begin);
      const bool any = load_panel(begin, count);
      if (!any && (!dq_ || kernel_.accumulate_dq)) continue;
      if (dq_) std::fill_n(dq_columns_.data(), width_ * padded_dim_, 0.0f);
      if (any) {
        for (const std::int64_t tile : mask_.tiles()) add_tile(tile);
      }
      if (!dq_) continue;
      transpose(dq_columns_.data(), width_, padded_dim_, width_, dq_rows_.data(), padded_dim_);
      dq_->store(begin, count, dq_rows_.data(), padded_dim_, kernel_.accumulate_dq);
    }
    if (dk_) dk_->store(0, dk_->size(), dk_sums_.data(), queries_.row_size, kernel_.accumulate_dkv);
    if (dv_) dv_->store(0, dv_->size(), dv_sums_.data(), douts_.row_size, kernel_.accumulate_dkv);
  }

 private:
  // Returns whether any row has a gradient. One has none if no slice shows it a key, or if no key had any weight: with an
  // infinite lse all its p are 0.
  bool load_panel(std::int64_t begin, std::int64_t count) {
    float *lse = row_lse_.data(), *delta = row_delta_.data();
    lse_.load(begin, count, lse, 1), delta_.load(begin, count, delta);
    std::uint64_t wanted = mask_.rows();
    for (std::int64_t row = 0; row < width_; ++row) {
      if (row < count && lse[row] == -kInfinity) wanted &= ~(std::uint64_t{1} << row);
      if ((wanted >> row & 1) == 0) lse[row] = kInfinity, delta[row] = 0;
    }
    if (wanted == 0) return false;
    queries_.load(q_, begin, wanted), douts_.load(dout_, begin, wanted);
    return true;
  }

  void add_tile(std::int64_t tile) {
    k_.pack(tile), v_.pack(tile);
    const std::int64_t first_key = tile * kTileKeys;
    for (const MaskRun& run : mask_.runs(tile)) {
      const std::int64_t column = run.first_vector * tiles_.lanes, keys = run.end - run.begin;
      float* scores = scores_.data() + (run.begin - first_key) * width_;
      float* products = products_.data() + (run.begin - first_key) * width_;
      const auto multiply = [&](const PackedRows& keys_of, const PanelRows& rows, std::int64_t dim,
                                float* out) {
        tiles_.multiply_panels({.a = keys_of.from(run.begin),
                                .a_panel = keys_of.from_panel(),
                                .b = rows.columns.data() + column,
                                .b_row = width_,
                                .c = out + column,
                                .c_row = width_,
                                .rows = keys,
                                .depth = dim,
                                .vectors = run.vectors});
      };
      multiply(k_, queries_, q_.dim(), scores), multiply(v_, douts_, dout_.dim(), products);
      tiles_.gradients({scores, run.all ? nullptr : mask_.of(run.begin), keys, run.first_vector, run.vectors},
                       products, scale_, row_lse_.data(), row_delta_.data());
      if (dk_) add_to_keys(run, products, queries_, dk_sums_);
      if (dv_) add_to_keys(run, scores, douts_, dv_sums_);
      if (dq_) add_to_queries(run, products);
    }
  }

  // sums[key] += sum over the rows of weights[key][row] * rows[row].
  void add_to_keys(const MaskRun& run, const float* weights, const PanelRows& rows, Floats& sums) {
    const std::int64_t column = run.first_vector * tiles_.lanes;
    tiles_.multiply_tile({.a = weights + column,
                          .b = rows.rows.data() + column * rows.row_size,
                          .b_row = rows.row_size,
                          .c = sums.data() + run.begin * rows.row_size,
                          .c_row = rows.row_size,
                          .rows = run.end - run.begin,
                          .depth = run.vectors * tiles_.lanes,
                          .vectors = rows.row_size / tiles_.lanes,
                          .accumulate = true});
  }

  // dq += ds k, without the keys that nobody sees: 0 times their values need not be 0.
  void add_to_queries(const MaskRun& run, const float* ds) {
    const std::int64_t column = run.first_vector * tiles_.lanes;
    for_each_stretch(mask_, run, [&](std::int64_t begin, std::int64_t end) {
      tiles_.multiply_panels({.a = k_.columns_from(begin),
                              .a_panel = k_.columns_panel(),
                              .b = ds + (begin - run.begin) * width_ + column,
                              .b_row = width_,
                              .c = dq_columns_.data() + column,
                              .c_row = width_,
                              .rows = padded_dim_,
                              .depth = end - begin,
                              .vectors = run.vectors,
                              .accumulate = true});
    });
  }

  const AttentionBackward& kernel_;
  const TileKernels& tiles_;
  PanelMask& mask_;
  const std::int64_t width_ = tiles_.width();  // rows of a panel, columns of a tile
  const float scale_;
  const std::int64_t batch_, kv_head_, heads_;
  const HeadRows q_, dout_, lse_;
  const RowDeltas delta_;
  std::optional<HeadRows> dq_, dk_, dv_;  // those that are wanted
  const std::int64_t padded_keys_ = round_up(kernel_.k.shape[1], tiles_.panel_rows);
  PackedRows k_, v_;
  PanelRows queries_, douts_;
  const std::int64_t padded_dim_;
  // Of the current panel, with a column for each row; dq_rows_ as it is in memory.
  Floats dq_columns_, dq_rows_, scores_, products_;
  Floats dk_sums_, dv_sums_;  // by key
  Floats row_lse_, row_delta_;
};

}  // namespace

void run(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration, Parts parts,
         const TileKernels& tiles) {
  if (parts.begin == parts.end) return;
  PanelMask mask(kernel.slices,
                 {kernel.q.shape[1], kernel.k.shape[1], kernel.q.shape[2] / kernel.k.shape[2], kTileKeys},
                 tiles);
  for (std::int64_t part = parts.begin; part < parts.end; ++part) {
    BackwardPart(kernel, memory, iteration, part, tiles, mask).run();
  }
}

void run(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration) {
  run(kernel, memory, iteration, all_parts(kernel), *tile_kernels().front());
}

}  // namespace cp
