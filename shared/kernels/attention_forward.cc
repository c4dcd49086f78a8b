// Attention of queries against keys, tile by tile.
#include <algorithm>
#include <cmath>
#include <limits>

#include "shared/kernels/attention.h"
#include "shared/kernels/attention_mask.h"
#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"

namespace cp {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kTileKeys =
    256;  // the scores of 48 queries are 48 KiB: they stay in the second-level cache

// The queries of one batch and key head.
class ForwardPart {
 public:
  ForwardPart(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration,
              std::int64_t part, const TileKernels& tiles, PanelMask& mask)
      : tiles_(tiles),
        mask_(mask),
        scale_(static_cast<float>(kernel.softmax_scale)),
        batch_(part / kernel.k.shape[2]),
        kv_head_(part % kernel.k.shape[2]),
        heads_(kernel.q.shape[2] / kernel.k.shape[2]),
        q_(kernel.q, memory, iteration, batch_, kv_head_ * heads_, heads_),
        out_(kernel.out, memory, iteration, batch_, kv_head_ * heads_, heads_),
        lse_(as_rows(kernel.lse), memory, iteration, batch_, kv_head_ * heads_, heads_),
        k_({kernel.k, memory, iteration, batch_, kv_head_, 1}, tiles, kTileKeys, PackedRows::For::dim_sums),
        v_({kernel.v, memory, iteration, batch_, kv_head_, 1}, tiles, kTileKeys, PackedRows::For::row_sums),
        padded_v_dim_(round_up(out_.dim(), tiles.panel_rows)),
        rows_(width_ * std::max(q_.dim(), padded_v_dim_)),
        queries_(width_ * q_.dim()),
        sums_(width_ * padded_v_dim_),
        scores_(width_ * std::min(kTileKeys, round_up(kernel.k.shape[1], tiles.panel_rows))),
        greatest_(width_),
        weights_(width_),
        factors_(width_) {}

  void run() {
    for (std::int64_t panel = 0; panel < mask_.panels(); ++panel) {
      mask_.select(panel);
      const std::int64_t begin = panel * width_, count = std::min(width_, q_.size() - begin);
      std::fill_n(greatest_.data(), width_, kNegativeInfinity);
      std::fill_n(weights_.data(), width_, 0.0f);
      std::fill_n(sums_.data(), width_ * padded_v_dim_, 0.0f);
      if (!mask_.tiles().empty()) load_queries(begin, count);
      for (const std::int64_t tile : mask_.tiles()) attend(tile);
      finish(begin, count);
    }
  }

 private:
  // As columns. Rows that see nothing are zeros, whatever they hold.
  void load_queries(std::int64_t begin, std::int64_t count) {
    std::fill_n(rows_.data(), width_ * q_.dim(), 0.0f);
    for (std::int64_t row = 0; row < count; ++row) {
      if ((mask_.rows() >> row & 1) != 0) q_.load(begin + row, 1, rows_.data() + row * q_.dim(), q_.dim());
    }
    transpose(rows_.data(), q_.dim(), width_, q_.dim(), queries_.data(), width_);
  }

  void attend(std::int64_t tile) {
    k_.pack(tile), v_.pack(tile);
    const std::int64_t first_key = tile * kTileKeys;
    const std::vector<MaskRun>& runs = mask_.runs(tile);
    std::copy_n(greatest_.data(), width_, factors_.data());
    for (const MaskRun& run : runs) {
      const std::int64_t column = run.first_vector * tiles_.lanes;
      float* scores = scores_.data() + (run.begin - first_key) * width_;
      tiles_.multiply_panels({.a = k_.from(run.begin),
                              .a_panel = k_.from_panel(),
                              .b = queries_.data() + column,
                              .b_row = width_,
                              .c = scores + column,
                              .c_row = width_,
                              .rows = run.end - run.begin,
                              .depth = q_.dim(),
                              .vectors = run.vectors});
      tiles_.scale_scores(block(run, scores), scale_, greatest_.data());
    }
    rescale();
    for (const MaskRun& run : runs) {
      float* scores = scores_.data() + (run.begin - first_key) * width_;
      tiles_.exponentials(block(run, scores), greatest_.data(), weights_.data());
      add_values(run, scores);
    }
  }

  TileBlock block(const MaskRun& run, float* scores) const {
    return {scores, run.all ? nullptr : mask_.of(run.begin), run.end - run.begin, run.first_vector,
            run.vectors};
  }

  // What was summed so far, relative to the new maxima; factors_ holds the old ones.
  void rescale() {
    for (std::int64_t row = 0; row < width_; ++row) {
      const float now = greatest_.data()[row];
      factors_.data()[row] -= now == kNegativeInfinity ? 0 : now;
    }
    tiles_.exponential(factors_.data(), factors_.data(), width_);
    for (std::int64_t row = 0; row < width_; ++row) weights_.data()[row] *= factors_.data()[row];
    tiles_.scale_columns({sums_.data(), nullptr, padded_v_dim_, 0, tiles_.vectors}, factors_.data());
  }

  // The keys that nobody sees are left out: 0 times their values need not be 0.
  void add_values(const MaskRun& run, const float* scores) {
    const std::int64_t column = run.first_vector * tiles_.lanes;
    for_each_stretch(mask_, run, [&](std::int64_t begin, std::int64_t end) {
      tiles_.multiply_panels({.a = v_.columns_from(begin),
                              .a_panel = v_.columns_panel(),
                              .b = scores + (begin - run.begin) * width_ + column,
                              .b_row = width_,
                              .c = sums_.data() + column,
                              .c_row = width_,
                              .rows = padded_v_dim_,
                              .depth = end - begin,
                              .vectors = run.vectors,
                              .accumulate = true});
    });
  }

  void finish(std::int64_t begin, std::int64_t count) {
    float *sums = weights_.data(), *factors = factors_.data(), *lse = greatest_.data();
    for (std::int64_t row = 0; row < width_; ++row) {
      factors[row] = sums[row] == 0 ? 0 : 1 / sums[row];
      lse[row] = sums[row] == 0 ? kNegativeInfinity : lse[row] + std::log(sums[row]);
    }
    tiles_.scale_columns({sums_.data(), nullptr, padded_v_dim_, 0, tiles_.vectors}, factors);
    transpose(sums_.data(), width_, padded_v_dim_, width_, rows_.data(), padded_v_dim_);
    for (std::int64_t row = 0; row < count; ++row) {
      if (sums[row] == 0) std::fill_n(rows_.data() + row * padded_v_dim_, padded_v_dim_, 0.0f);
    }
    out_.store(begin, count, rows_.data(), padded_v_dim_);
    lse_.store(begin, count, lse, 1);
  }

  const TileKernels& tiles_;
  PanelMask& mask_;
  const std::int64_t width_ = tiles_.width();  // rows of a panel, columns of a tile
  const float scale_;
  const std::int64_t batch_, kv_head_, heads_;
  const HeadRows q_, out_, lse_;
  PackedRows k_, v_;
  const std::int64_t padded_v_dim_;
  // Of the current panel: rows as they are in memory; queries, sums and scores with a column for each row.
  Floats rows_, queries_, sums_, scores_;
  Floats greatest_, weights_,
      factors_;  // by row: the greatest score, the sum of weights, and what rescales both sums
};

}  // namespace

void run(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration, Parts parts,
         const TileKernels& tiles) {
  if (parts.begin == parts.end) return;
  PanelMask mask(kernel.slices,
                 {kernel.q.shape[1], kernel.k.shape[1], kernel.q.shape[2] / kernel.k.shape[2], kTileKeys},
                 tiles);
  for (std::int64_t part = parts.begin; part < parts.end; ++part) {
    ForwardPart(kernel, memory, iteration, part, tiles, mask).run();
  }
}

void run(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration) {
  run(kernel, memory, iteration, all_parts(kernel), *tile_kernels().front());
}

}  // namespace cp
