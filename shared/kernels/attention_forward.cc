// Attention of queries against keys, tile by tile.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "shared/kernels/attention_dropout.h"
#include "shared/kernels/attention_mask.h"
#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"
#include "shared/kernels/tiled_attention.h"

namespace cp {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
// Keys of a tile. Chosen: the scores of 48 queries are 48 KiB, which stay in the second-level cache.
// kForwardChain (tiled_attention.h) depends on it.
constexpr std::int64_t kForwardTileKeys = 256;
// How far a score may lie above the one that the weights are relative to before the sums are scaled down.
// Chosen: large enough that scaling is rare, so that its roundings do not add up; small enough that sums stay
// far from overflow: weights are at most e^8, about 3,000, and even 2^60 of them are below 2^72, where f32
// ends at 2^128.
constexpr float kHeadroom = 8;

// The queries of one batch and key head.
class ForwardPart {
 public:
  ForwardPart(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration,
              std::int64_t part, const TileKernels& tiles, PanelMask& mask,
              std::optional<DropoutRows>& dropout)
      : tiles_(tiles),
        mask_(mask),
        dropout_(dropout),
        scale_(static_cast<float>(kernel.softmax_scale)),
        softcap_(static_cast<float>(kernel.softcap)),
        batch_(part / kernel.k.shape[2]),
        kv_head_(part % kernel.k.shape[2]),
        heads_(kernel.q.shape[2] / kernel.k.shape[2]),
        q_(kernel.q, memory, iteration, batch_, kv_head_ * heads_, heads_),
        out_(kernel.out, memory, iteration, batch_, kv_head_ * heads_, heads_),
        lse_(as_rows(kernel.lse), memory, iteration, batch_, kv_head_ * heads_, heads_),
        pairs_(multiplies_pairs(tiles, memory, kernel.q, kernel.k)),
        k_({kernel.k, memory, iteration, batch_, kv_head_, 1}, tiles, kForwardTileKeys,
           PackedRows::For::dim_sums, pairs_),
        v_({kernel.v, memory, iteration, batch_, kv_head_, 1}, tiles, kForwardTileKeys,
           PackedRows::For::row_sums, false),
        padded_v_dim_(round_up(out_.dim(), tiles.panel_rows)),
        rows_(width_ * std::max(q_.dim(), padded_v_dim_)),
        queries_(width_ * q_.dim()),
        sums_(width_ * padded_v_dim_),
        sums_low_(width_ * padded_v_dim_),
        tile_sums_(width_ * padded_v_dim_),
        scores_(width_ * std::min(kForwardTileKeys, round_up(kernel.k.shape[1], tiles.panel_rows))),
        kept_(dropout ? width_ * kForwardTileKeys : 0),
        greatest_(width_),
        base_(width_),
        weights_(width_),
        weights_low_(width_),
        factors_(width_),
        factors_low_(width_) {}

  void run() {
    for (std::int64_t panel = 0; panel < mask_.panels(); ++panel) {
      mask_.select(panel);
      const std::int64_t begin = panel * width_, count = std::min(width_, q_.size() - begin);
      for (Floats* scores : {&greatest_, &base_}) std::fill_n(scores->data(), width_, kNegativeInfinity);
      for (Floats* weights : {&weights_, &weights_low_}) std::fill_n(weights->data(), width_, 0.0f);
      for (Floats* sums : {&sums_, &sums_low_}) std::fill_n(sums->data(), width_ * padded_v_dim_, 0.0f);
      if (!mask_.tiles().empty()) load_queries(begin, count);
      if (dropout_) dropout_->select(batch_, kv_head_ * heads_, heads_, begin, q_.size());
      for (const std::int64_t tile : mask_.tiles()) attend(tile);
      finish(begin, count);
    }
  }

 private:
  // Loads the queries as columns. Rows that see nothing become zeros, whatever values they have.
  void load_queries(std::int64_t begin, std::int64_t count) {
    std::fill_n(rows_.data(), width_ * q_.dim(), 0.0f);
    for (std::int64_t row = 0; row < count; ++row) {
      if ((mask_.rows() >> row & 1) != 0) q_.load(begin + row, 1, rows_.data() + row * q_.dim(), q_.dim());
    }
    transpose(rows_.data(), q_.dim(), width_, q_.dim(), queries_.data(), width_);
    if (pairs_) pack_pairs(queries_.data(), q_.dim(), width_, queries_.data());
  }

  void attend(std::int64_t tile) {
    k_.pack(tile), v_.pack(tile);
    const std::int64_t first_key = tile * kForwardTileKeys;
    const std::vector<MaskRun>& runs = mask_.runs(tile);
    for (const MaskRun& run : runs) {
      const std::int64_t column = run.first_vector * tiles_.lanes;
      float* scores = scores_.data() + (run.begin - first_key) * width_;
      const TileProduct product{.a = k_.from(run.begin),
                                .a_panel = k_.from_panel(),
                                .b = queries_.data() + column,
                                .b_row = width_,
                                .c = scores + column,
                                .c_row = width_,
                                .rows = run.end - run.begin,
                                .depth = depth_of(q_.dim(), pairs_),
                                .vectors = run.vectors,
                                .chain = kDimChain};
      pairs_ ? tiles_.multiply_pairs(product) : tiles_.multiply_panels(product);
      if (softcap_ != 0) tiles_.cap_scores(block(run, scores), scale_, softcap_, nullptr);
      tiles_.scale_scores(block(run, scores), softcap_ == 0 ? scale_ : 1, greatest_.data());
    }
    rebase();
    std::fill_n(tile_sums_.data(), width_ * padded_v_dim_, 0.0f);
    for (const MaskRun& run : runs) {
      float* scores = scores_.data() + (run.begin - first_key) * width_;
      tiles_.exponentials(block(run, scores), base_.data(), weights_.data(), weights_low_.data());
      if (dropout_) {
        tiles_.dropout(block(run, kept_.data()), dropout_->tile(run.begin));
        tiles_.multiply_by(block(run, scores), kept_.data());
      }
      add_values(run, scores);
    }
    tiles_.add_to(sums_.data(), sums_low_.data(), tile_sums_.data(), width_ * padded_v_dim_);
  }

  TileBlock block(const MaskRun& run, float* scores) const {
    return {scores, run.all ? nullptr : mask_.of(run.begin), run.end - run.begin, run.first_vector,
            run.vectors};
  }

  // Makes the weights relative to the greatest score, if that lies too far above their base.
  void rebase() {
    const float* greatest = greatest_.data();
    float *base = base_.data(), *factors = factors_.data();
    bool any_sum = false;
    for (std::int64_t row = 0; row < width_; ++row) {
      const bool far = greatest[row] > base[row] + kHeadroom;
      any_sum |= far && base[row] != kNegativeInfinity;
      factors[row] = far ? base[row] - greatest[row] : 0;
      base[row] = far ? greatest[row] : base[row];
    }
    if (!any_sum) return;
    tiles_.exponential(factors, factors, width_);
    for (Floats* weights : {&weights_, &weights_low_}) {
      for (std::int64_t row = 0; row < width_; ++row) weights->data()[row] *= factors[row];
    }
    for (Floats* sums : {&sums_, &sums_low_}) {
      tiles_.scale_columns({sums->data(), nullptr, padded_v_dim_, 0, tiles_.vectors}, factors, nullptr);
    }
  }

  // Keys that no query sees are left out: 0 times their values need not be 0 (NaNs, infinities).
  void add_values(const MaskRun& run, const float* scores) {
    const std::int64_t column = run.first_vector * tiles_.lanes;
    for_each_stretch(mask_, run, [&](std::int64_t begin, std::int64_t end) {
      tiles_.multiply_panels({.a = v_.columns_from(begin),
                              .a_panel = v_.columns_panel(),
                              .b = scores + (begin - run.begin) * width_ + column,
                              .b_row = width_,
                              .c = tile_sums_.data() + column,
                              .c_row = width_,
                              .rows = padded_v_dim_,
                              .depth = end - begin,
                              .vectors = run.vectors,
                              .accumulate = true});
    });
  }

  void finish(std::int64_t begin, std::int64_t count) {
    float *weights = weights_.data(), *factors = factors_.data(), *factors_low = factors_low_.data(),
          *lse = greatest_.data();
    for (std::int64_t row = 0; row < width_; ++row) {
      const float low = weights_low_.data()[row];
      const double weight = static_cast<double>(weights[row]) + static_cast<double>(low == low ? low : 0);
      // The factor has two parts. If it were rounded, all values of the row would have the same error, and
      // their sum, delta, would keep it.
      const double factor = weight == 0 ? 0 : 1 / weight;
      factors[row] = static_cast<float>(factor);
      factors_low[row] = static_cast<float>(factor - static_cast<double>(factors[row]));
      lse[row] = weight == 0 ? kNegativeInfinity
                             : static_cast<float>(static_cast<double>(base_.data()[row]) + std::log(weight));
    }
    tiles_.round_sums(sums_.data(), sums_low_.data(), width_ * padded_v_dim_);
    tiles_.scale_columns({sums_.data(), nullptr, padded_v_dim_, 0, tiles_.vectors}, factors, factors_low);
    transpose(sums_.data(), width_, padded_v_dim_, width_, rows_.data(), padded_v_dim_);
    for (std::int64_t row = 0; row < count; ++row) {
      if (weights[row] == 0) std::fill_n(rows_.data() + row * padded_v_dim_, padded_v_dim_, 0.0f);
    }
    out_.store(begin, count, rows_.data(), padded_v_dim_);
    lse_.store(begin, count, lse, 1);
  }

  const TileKernels& tiles_;
  PanelMask& mask_;
  std::optional<DropoutRows>& dropout_;
  const std::int64_t width_ = tiles_.width();  // rows of a panel, columns of a tile
  const float scale_, softcap_;
  const std::int64_t batch_, kv_head_, heads_;
  const HeadRows q_, out_, lse_;
  const bool pairs_;  // q and k are multiplied in bf16
  PackedRows k_, v_;
  const std::int64_t padded_v_dim_;
  // Of the current panel: rows as they are in memory; queries, sums and scores with a column for each row.
  Floats rows_, queries_, sums_, sums_low_, tile_sums_, scores_;
  Floats kept_;  // a tile of what dropout multiplies weights by
  // By row: the greatest score, the one that weights are relative to, the sum of weights, and what rescales
  // both sums.
  Floats greatest_, base_, weights_, weights_low_, factors_, factors_low_;
};

}  // namespace

void run(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration, Parts parts,
         const TileKernels& tiles) {
  if (parts.begin == parts.end) return;
  PanelMask mask(
      kernel.slices,
      {kernel.q.shape[1], kernel.k.shape[1], kernel.q.shape[2] / kernel.k.shape[2], kForwardTileKeys}, tiles);
  std::optional<DropoutRows> dropout = dropout_rows(kernel, memory, iteration, tiles.width());
  for (std::int64_t part = parts.begin; part < parts.end; ++part) {
    ForwardPart(kernel, memory, iteration, part, tiles, mask, dropout).run();
  }
}

void run(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration) {
  run(kernel, memory, iteration, all_parts(kernel), *tile_kernels().front());
}

}  // namespace cp
