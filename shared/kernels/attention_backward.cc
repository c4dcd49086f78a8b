// Gradients of attention: with p = exp(scale q k - lse), ds = p (dout v - delta) scale,
//   dq = sum over keys ds k,   dk = sum over queries ds q,   dv = sum over queries p dout.
// With a softcap c, p = exp(c t - lse) where t = tanh(scale q k / c), and ds has a factor 1 - t^2 more. With
// dropout that multiplies weights by m (0 or 1 / (1 - probability)), ds = p (m dout v - delta) scale, and dv
// = sum m p dout. Dao et al., "FlashAttention" (2022), appendix B.2.
#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shared/kernels/attention_dropout.h"
#include "shared/kernels/attention_mask.h"
#include "shared/kernels/attention_rows.h"
#include "shared/kernels/kernels.h"
#include "shared/kernels/tiled_attention.h"

namespace cp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Keys of a tile. Chosen: p and ds of 48 queries are 24 KiB each, which stay in the second-level cache;
// kQueryChain (tiled_attention.h) depends on it.
constexpr std::int64_t kBackwardTileKeys = 128;

// The rows of one panel in two forms: as rows, padded to whole vectors, and as columns, or as columns of
// pairs (multiply_pairs()).
struct PanelRows {
  PanelRows(std::int64_t row_dim, bool as_pairs, const TileKernels& tiles)
      : dim(row_dim),
        pairs(as_pairs),
        width(tiles.width()),
        row_size(round_up(dim, tiles.lanes)),
        rows(width * row_size),
        columns(width * dim) {}

  // Rows that are not wanted become zeros, whatever values they have.
  void load(const HeadRows& from, std::int64_t begin, std::uint64_t wanted) {
    std::fill_n(rows.data(), width * row_size, 0.0f);
    for (std::int64_t row = 0; row < width; ++row) {
      if ((wanted >> row & 1) != 0) from.load(begin + row, 1, rows.data() + row * row_size, row_size);
    }
    transpose(rows.data(), row_size, width, dim, columns.data(), width);
    if (pairs) pack_pairs(columns.data(), dim, width, columns.data());
  }

  const std::int64_t dim;
  const bool pairs;  // columns are pairs of bf16
  const std::int64_t width, row_size;
  Floats rows, columns;
};

// The deltas of rows. They are given or, in a fused step, computed from out and dout.
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

// A panel of rows: what it reads, and its gradient.
struct Panel {
  Panel(PanelMask& mask_of, PanelRows queries_of, PanelRows douts_of, std::int64_t dq_size,
        const TileKernels& tiles)
      : mask(mask_of),
        queries(std::move(queries_of)),
        douts(std::move(douts_of)),
        dq(dq_size),
        dq_low(dq_size),
        lse(tiles.width()),
        delta(tiles.width()) {}

  PanelMask& mask;
  std::int64_t begin = 0, count = 0;  // rows
  bool any = false;                   // whether any row has a gradient
  PanelRows queries, douts;
  Floats dq, dq_low;  // with a column for each row
  Floats lse, delta;  // by row
};

// The gradients of keys or of values: those of all keys, as sum and low, and what the panels of one group add
// to those of one tile.
struct KeySums {
  KeySums(std::int64_t keys, std::int64_t tile_keys, std::int64_t row)
      : row_size(row), sum(keys * row), low(keys * row), tile(std::min(tile_keys, keys) * row) {
    for (Floats* sums : {&sum, &low}) std::fill_n(sums->data(), keys * row, 0.0f);
  }

  const std::int64_t row_size;
  Floats sum, low, tile;
};

// The gradients of one batch and key head. Panels go in groups: a group's sums over its rows stay in the
// cache, and each is added once to those of all rows.
class BackwardPart {
 public:
  BackwardPart(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration,
               std::int64_t part, const TileKernels& tiles, std::span<PanelMask> masks,
               std::optional<DropoutRows>& dropout)
      : kernel_(kernel),
        tiles_(tiles),
        dropout_(dropout),
        scale_(static_cast<float>(kernel.softmax_scale)),
        softcap_(static_cast<float>(kernel.softcap)),
        batch_(part / kernel.k.shape[2]),
        kv_head_(part % kernel.k.shape[2]),
        heads_(kernel.q.shape[2] / kernel.k.shape[2]),
        q_(kernel.q, memory, iteration, batch_, kv_head_ * heads_, heads_),
        dout_(kernel.dout, memory, iteration, batch_, kv_head_ * heads_, heads_),
        lse_(as_rows(kernel.lse), memory, iteration, batch_, kv_head_ * heads_, heads_),
        delta_(kernel, memory, iteration, batch_, kv_head_ * heads_, heads_),
        score_pairs_(multiplies_pairs(tiles, memory, kernel.q, kernel.k)),
        value_pairs_(multiplies_pairs(tiles, memory, kernel.dout, kernel.v)),
        k_({kernel.k, memory, iteration, batch_, kv_head_, 1}, tiles, kBackwardTileKeys,
           PackedRows::For::both, score_pairs_),
        v_({kernel.v, memory, iteration, batch_, kv_head_, 1}, tiles, kBackwardTileKeys,
           PackedRows::For::dim_sums, value_pairs_),
        padded_dim_(round_up(q_.dim(), tiles.panel_rows)),
        dq_tile_(width_ * padded_dim_),
        dq_rows_(width_ * padded_dim_),
        scores_(width_ * std::min(kBackwardTileKeys, padded_keys_)),
        products_(width_ * std::min(kBackwardTileKeys, padded_keys_)),
        kept_(dropout ? width_ * kBackwardTileKeys : 0),
        slopes_(kernel.softcap != 0 ? width_ * kBackwardTileKeys : 0),
        dk_sums_(padded_keys_, kBackwardTileKeys, round_up(q_.dim(), tiles.lanes)),
        dv_sums_(padded_keys_, kBackwardTileKeys, round_up(dout_.dim(), tiles.lanes)) {
    if (!is_absent(kernel.dq)) dq_.emplace(kernel.dq, memory, iteration, batch_, kv_head_ * heads_, heads_);
    if (!is_absent(kernel.dk)) dk_.emplace(kernel.dk, memory, iteration, batch_, kv_head_, 1);
    if (!is_absent(kernel.dv)) dv_.emplace(kernel.dv, memory, iteration, batch_, kv_head_, 1);
    if (dk_) wanted_sums_.push_back(&dk_sums_);
    if (dv_) wanted_sums_.push_back(&dv_sums_);
    for (PanelMask& mask : masks) {
      group_.emplace_back(mask, PanelRows(q_.dim(), score_pairs_, tiles),
                          PanelRows(dout_.dim(), value_pairs_, tiles), width_ * padded_dim_, tiles);
    }
  }

  void run() {
    const std::int64_t panels = (q_.size() + width_ - 1) / width_,
                       group = static_cast<std::int64_t>(group_.size());
    for (std::int64_t first = 0; first < panels; first += group) {
      const std::int64_t count = std::min(group, panels - first);
      tile_numbers_.clear();
      for (std::int64_t i = 0; i < count; ++i) load(group_[static_cast<std::size_t>(i)], first + i);
      std::sort(tile_numbers_.begin(), tile_numbers_.end());
      tile_numbers_.erase(std::unique(tile_numbers_.begin(), tile_numbers_.end()), tile_numbers_.end());
      for (const std::int64_t tile : tile_numbers_) add_tile(tile, count);
      for (std::int64_t i = 0; i < count; ++i) store(group_[static_cast<std::size_t>(i)]);
    }
    if (dk_) store(*dk_, dk_sums_);
    if (dv_) store(*dv_, dv_sums_);
  }

 private:
  // A row has no gradient if no slice shows it a key, or if no key had any weight: with an infinite lse all
  // its p are 0.
  void load(Panel& panel, std::int64_t number) {
    panel.mask.select(number);
    panel.begin = number * width_, panel.count = std::min(width_, q_.size() - panel.begin);
    float *lse = panel.lse.data(), *delta = panel.delta.data();
    lse_.load(panel.begin, panel.count, lse, 1), delta_.load(panel.begin, panel.count, delta);
    std::uint64_t wanted = panel.mask.rows();
    for (std::int64_t row = 0; row < width_; ++row) {
      if (row < panel.count && lse[row] == -kInfinity) wanted &= ~(std::uint64_t{1} << row);
      if ((wanted >> row & 1) == 0) lse[row] = kInfinity, delta[row] = 0;
    }
    panel.any = wanted != 0;
    if (!panel.any) return;
    panel.queries.load(q_, panel.begin, wanted), panel.douts.load(dout_, panel.begin, wanted);
    for (Floats* sums : {&panel.dq, &panel.dq_low}) std::fill_n(sums->data(), width_ * padded_dim_, 0.0f);
    tile_numbers_.insert(tile_numbers_.end(), panel.mask.tiles().begin(), panel.mask.tiles().end());
  }

  void store(Panel& panel) {
    if (!dq_ || (!panel.any && kernel_.accumulate_dq)) return;
    if (panel.any) {
      tiles_.round_sums(panel.dq.data(), panel.dq_low.data(), width_ * padded_dim_);
      transpose(panel.dq.data(), width_, padded_dim_, width_, dq_rows_.data(), padded_dim_);
    } else {
      std::fill_n(dq_rows_.data(), width_ * padded_dim_, 0.0f);
    }
    dq_->store(panel.begin, panel.count, dq_rows_.data(), padded_dim_, kernel_.accumulate_dq);
  }

  void store(const HeadRows& to, KeySums& from) {
    tiles_.round_sums(from.sum.data(), from.low.data(), padded_keys_ * from.row_size);
    to.store(0, to.size(), from.sum.data(), from.row_size, kernel_.accumulate_dkv);
  }

  // Adds what the first `count` panels of the group contribute, over the keys of one tile that any of them
  // sees.
  void add_tile(std::int64_t tile, std::int64_t count) {
    k_.pack(tile), v_.pack(tile);
    tile_begin_ = tile * kBackwardTileKeys;
    std::int64_t begin = padded_keys_, end = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      Panel& panel = group_[static_cast<std::size_t>(i)];
      if (!panel.any) continue;
      const std::vector<MaskRun>& runs = panel.mask.runs(tile);
      if (runs.empty()) continue;
      std::fill_n(dq_tile_.data(), width_ * padded_dim_, 0.0f);
      for (const MaskRun& run : runs) {
        if (begin > end) begin = end = run.begin;
        clear(begin, end, run);
        begin = std::min(begin, run.begin), end = std::max(end, run.end);
        add_run(panel, run);
      }
      if (dq_) tiles_.add_to(panel.dq.data(), panel.dq_low.data(), dq_tile_.data(), width_ * padded_dim_);
    }
    if (begin >= end) return;
    for (KeySums* sums : wanted_sums_) {
      const std::int64_t at = begin * sums->row_size;
      tiles_.add_to(sums->sum.data() + at, sums->low.data() + at, in_tile(*sums, begin),
                    (end - begin) * sums->row_size);
    }
  }

  float* in_tile(KeySums& sums, std::int64_t key) const {
    return sums.tile.data() + (key - tile_begin_) * sums.row_size;
  }

  // Sets zeros for the keys of the run outside of [begin, end), which is in use, and for those between.
  void clear(std::int64_t begin, std::int64_t end, const MaskRun& run) {
    for (KeySums* sums : wanted_sums_) {
      if (run.begin < begin)
        std::fill_n(in_tile(*sums, run.begin), (begin - run.begin) * sums->row_size, 0.0f);
      if (run.end > end) std::fill_n(in_tile(*sums, end), (run.end - end) * sums->row_size, 0.0f);
    }
  }

  void add_run(Panel& panel, const MaskRun& run) {
    const std::int64_t column = run.first_vector * tiles_.lanes, keys = run.end - run.begin;
    float* scores = scores_.data() + (run.begin - tile_begin_) * width_;
    float* products = products_.data() + (run.begin - tile_begin_) * width_;
    const auto multiply = [&](const PackedRows& keys_of, const PanelRows& rows, float* out) {
      const TileProduct product{.a = keys_of.from(run.begin),
                                .a_panel = keys_of.from_panel(),
                                .b = rows.columns.data() + column,
                                .b_row = width_,
                                .c = out + column,
                                .c_row = width_,
                                .rows = keys,
                                .depth = depth_of(rows.dim, rows.pairs),
                                .vectors = run.vectors,
                                .chain = kDimChain};
      rows.pairs ? tiles_.multiply_pairs(product) : tiles_.multiply_panels(product);
    };
    multiply(k_, panel.queries, scores), multiply(v_, panel.douts, products);
    const auto block = [&](float* tile) {
      return TileBlock{tile, run.all ? nullptr : panel.mask.of(run.begin), keys, run.first_vector,
                       run.vectors};
    };
    if (dropout_) {
      dropout_->select(batch_, kv_head_ * heads_, heads_, panel.begin, q_.size());
      tiles_.dropout(block(kept_.data()), dropout_->tile(run.begin));
      tiles_.multiply_by(block(products), kept_.data());
    }
    if (softcap_ != 0) tiles_.cap_scores(block(scores), scale_, softcap_, slopes_.data());
    tiles_.gradients(block(scores), products, softcap_ == 0 ? scale_ : 1, panel.lse.data(),
                     panel.delta.data());
    if (softcap_ != 0) tiles_.multiply_by(block(products), slopes_.data());
    if (dropout_) tiles_.multiply_by(block(scores), kept_.data());
    if (dk_) add_to_keys(run, products, panel.queries, dk_sums_);
    if (dv_) add_to_keys(run, scores, panel.douts, dv_sums_);
    if (dq_) add_to_queries(panel.mask, run, products);
  }

  // sums[key] += sum over the rows of weights[key][row] * rows[row].
  void add_to_keys(const MaskRun& run, const float* weights, const PanelRows& rows, KeySums& sums) {
    const std::int64_t column = run.first_vector * tiles_.lanes;
    tiles_.multiply_tile({.a = weights + column,
                          .b = rows.rows.data() + column * rows.row_size,
                          .b_row = rows.row_size,
                          .c = in_tile(sums, run.begin),
                          .c_row = rows.row_size,
                          .rows = run.end - run.begin,
                          .depth = run.vectors * tiles_.lanes,
                          .vectors = rows.row_size / tiles_.lanes,
                          .accumulate = true});
  }

  // dq += ds k, without the keys that no query sees: 0 times their values need not be 0 (NaNs, infinities).
  void add_to_queries(const PanelMask& mask, const MaskRun& run, const float* ds) {
    const std::int64_t column = run.first_vector * tiles_.lanes;
    for_each_stretch(mask, run, [&](std::int64_t begin, std::int64_t end) {
      tiles_.multiply_panels({.a = k_.columns_from(begin),
                              .a_panel = k_.columns_panel(),
                              .b = ds + (begin - run.begin) * width_ + column,
                              .b_row = width_,
                              .c = dq_tile_.data() + column,
                              .c_row = width_,
                              .rows = padded_dim_,
                              .depth = end - begin,
                              .vectors = run.vectors,
                              .accumulate = true});
    });
  }

  const AttentionBackward& kernel_;
  const TileKernels& tiles_;
  std::optional<DropoutRows>& dropout_;
  const std::int64_t width_ = tiles_.width();  // rows of a panel, columns of a tile
  const float scale_, softcap_;
  const std::int64_t batch_, kv_head_, heads_;
  const HeadRows q_, dout_, lse_;
  const RowDeltas delta_;
  std::optional<HeadRows> dq_, dk_, dv_;  // those that are wanted
  const std::int64_t padded_keys_ = round_up(kernel_.k.shape[1], tiles_.panel_rows);
  const bool score_pairs_, value_pairs_;  // multiplied in bf16: q k, and dout v
  PackedRows k_, v_;
  const std::int64_t padded_dim_;
  std::deque<Panel> group_;
  std::vector<std::int64_t> tile_numbers_;  // that some panel of the group sees, ascending
  std::int64_t tile_begin_ = 0;             // the first key of the current tile
  // Of one panel; dq_tile_ is of one tile, dq_rows_ as the rows are in memory.
  Floats dq_tile_, dq_rows_, scores_, products_;
  Floats kept_, slopes_;  // of the run: what dropout multiplies by, and the derivatives of capped scores
  KeySums dk_sums_, dv_sums_;
  std::vector<KeySums*> wanted_sums_;
};

}  // namespace

void run(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration, Parts parts,
         const TileKernels& tiles) {
  if (parts.begin == parts.end) return;
  const PanelMask mask(
      kernel.slices,
      {kernel.q.shape[1], kernel.k.shape[1], kernel.q.shape[2] / kernel.k.shape[2], kBackwardTileKeys},
      tiles);
  std::vector<PanelMask> masks(static_cast<std::size_t>(std::min(kGroupPanels, mask.panels())), mask);
  std::optional<DropoutRows> dropout = dropout_rows(kernel, memory, iteration, tiles.width());
  for (std::int64_t part = parts.begin; part < parts.end; ++part) {
    BackwardPart(kernel, memory, iteration, part, tiles, masks, dropout).run();
  }
}

void run(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration) {
  run(kernel, memory, iteration, all_parts(kernel), *tile_kernels().front());
}

}  // namespace cp
