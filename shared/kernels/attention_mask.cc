#include "shared/kernels/attention_mask.h"

#include <algorithm>
#include <bit>

namespace cp {
namespace {

// The row that is `bits` bits up; all rows from 64 on are beyond every panel.
std::uint64_t rows_below(std::int64_t row) { return (std::uint64_t{1} << row) - 1; }

// A query i sees the keys i + after < j <= i + last of its slice. Numbers beyond the slice's size mean the
// same as its size, and cannot overflow.
struct Diagonals {
  std::int64_t after = 0, last = 0;
};
Diagonals diagonals_of(const MaskSlice& slice) {
  const std::int64_t none = -slice.q_len, all = slice.k_len;
  if (slice.kind == MaskSlice::Kind::full) return {none, all};
  const std::int64_t last = std::clamp(slice.diagonal, none, all);
  if (slice.kind == MaskSlice::Kind::causal) return {none, last};
  std::int64_t after = 0;
  if (__builtin_sub_overflow(slice.diagonal, slice.window, &after)) after = none;
  return {std::clamp(after, none, all), last};
}

}  // namespace

PanelMask::PanelMask(std::span<const MaskSlice> slices, const Sizes& sizes, const TileKernels& kernels)
    : sizes_(sizes), kernels_(&kernels) {
  const std::int64_t rows = sizes.q_len * sizes.heads,
                     tiles = (sizes.k_len + sizes.tile_keys - 1) / sizes.tile_keys;
  panels_ = (rows + kernels.width() - 1) / kernels.width();
  bits_.resize(static_cast<std::size_t>(tiles * sizes.tile_keys));
  touched_.resize(static_cast<std::size_t>(tiles));
  for (const MaskSlice& slice : slices) {
    if (panels_ > 0 && slice.q_len > 0 && slice.k_len > 0) slices_.push_back(slice);
  }
  index(slices_);
}

// Counts, then places: the slices of each panel, in order.
void PanelMask::index(std::span<const MaskSlice> slices) {
  const auto panels_of = [&](const MaskSlice& slice, auto&& f) {
    const std::int64_t first = slice.q_begin * sizes_.heads / kernels_->width();
    const std::int64_t last = ((slice.q_begin + slice.q_len) * sizes_.heads - 1) / kernels_->width();
    for (std::int64_t panel = first; panel <= last; ++panel) f(static_cast<std::size_t>(panel));
  };
  slices_begin_.assign(static_cast<std::size_t>(panels_) + 1, 0);
  for (const MaskSlice& slice : slices) {
    panels_of(slice, [&](std::size_t panel) { ++slices_begin_[panel + 1]; });
  }
  for (std::size_t panel = 1; panel < slices_begin_.size(); ++panel) {
    slices_begin_[panel] += slices_begin_[panel - 1];
  }
  slices_of_.resize(static_cast<std::size_t>(slices_begin_.back()));
  std::vector<std::int64_t> next = slices_begin_;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    panels_of(slices[i], [&](std::size_t panel) {
      slices_of_[static_cast<std::size_t>(next[panel]++)] = static_cast<std::int64_t>(i);
    });
  }
}

void PanelMask::select(std::int64_t panel) {
  for (const std::int64_t tile : tiles_) {
    touched_[static_cast<std::size_t>(tile)] = false;
    std::fill_n(bits_.begin() + tile * sizes_.tile_keys, sizes_.tile_keys, 0);
  }
  tiles_.clear();
  rows_ = 0;
  first_row_ = panel * kernels_->width();
  panel_rows_ = std::min(kernels_->width(), sizes_.q_len * sizes_.heads - first_row_);
  const auto at = static_cast<std::size_t>(panel);
  for (std::int64_t i = slices_begin_[at]; i < slices_begin_[at + 1]; ++i) {
    add(slices_[static_cast<std::size_t>(slices_of_[static_cast<std::size_t>(i)])]);
  }
  std::sort(tiles_.begin(), tiles_.end());
}

// Keys are counted from the slice's first one. The queries that see key j are those in (j - last - 1, j -
// after): an interval that moves with j, and covers all of the panel's queries in between.
void PanelMask::add(const MaskSlice& slice) {
  const Diagonals diagonals = diagonals_of(slice);
  const std::int64_t after = diagonals.after, last = diagonals.last;  // no bindings: Clang 14 captures none
  const std::int64_t row_begin = std::max(first_row_, slice.q_begin * sizes_.heads);
  const std::int64_t row_end =
      std::min(first_row_ + panel_rows_, (slice.q_begin + slice.q_len) * sizes_.heads);
  const std::int64_t q_begin = row_begin / sizes_.heads - slice.q_begin;
  const std::int64_t q_last = (row_end - 1) / sizes_.heads - slice.q_begin;
  const std::int64_t begin = std::max<std::int64_t>(0, q_begin + after + 1);
  const std::int64_t end = std::min(slice.k_len, q_last + last + 1);
  if (begin >= end) return;
  touch(slice.k_begin + begin, slice.k_begin + end);
  const std::int64_t all_begin = std::clamp(q_last + after + 1, begin, end);
  const std::int64_t all_end = std::clamp(q_begin + last + 1, all_begin, end);
  const auto add_partly = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t j = from; j < to; ++j) {
      const std::int64_t first = (slice.q_begin + j - last) * sizes_.heads;
      const std::int64_t behind = (slice.q_begin + j - after) * sizes_.heads;
      add_keys(slice.k_begin + j, slice.k_begin + j + 1,
               rows_between(std::max(row_begin, first), std::min(row_end, behind)));
    }
  };
  add_partly(begin, all_begin);
  add_keys(slice.k_begin + all_begin, slice.k_begin + all_end, rows_between(row_begin, row_end));
  add_partly(all_end, end);
}

std::uint64_t PanelMask::rows_between(std::int64_t begin, std::int64_t end) const {
  if (begin >= end) return 0;
  return rows_below(end - first_row_) & ~rows_below(begin - first_row_);
}

void PanelMask::add_keys(std::int64_t begin, std::int64_t end, std::uint64_t rows) {
  if (begin >= end) return;
  for (std::int64_t key = begin; key < end; ++key) bits_[static_cast<std::size_t>(key)] |= rows;
  rows_ |= rows;
}

void PanelMask::touch(std::int64_t begin, std::int64_t end) {
  for (std::int64_t tile = begin / sizes_.tile_keys; tile <= (end - 1) / sizes_.tile_keys; ++tile) {
    if (touched_[static_cast<std::size_t>(tile)]) continue;
    touched_[static_cast<std::size_t>(tile)] = true;
    tiles_.push_back(tile);
  }
}

const std::vector<MaskRun>& PanelMask::runs(std::int64_t tile) {
  runs_.clear();
  const std::int64_t lanes = kernels_->lanes, step = kernels_->panel_rows;
  const std::int64_t tile_end = (tile + 1) * sizes_.tile_keys;
  for (std::int64_t begin = tile * sizes_.tile_keys; begin < tile_end; begin += step) {
    std::uint64_t some = 0, all = ~std::uint64_t{0};
    for (std::int64_t key = begin; key < begin + step; ++key) some |= *of(key), all &= *of(key);
    if (some == 0) continue;
    const std::int64_t first = std::countr_zero(some) / lanes, last = (63 - std::countl_zero(some)) / lanes;
    const std::uint64_t whole = rows_below(lanes * (last + 1)) & ~rows_below(lanes * first);
    const MaskRun run{begin, begin + step, first, last - first + 1, (all & whole) == whole};
    if (!runs_.empty() && runs_.back().end == begin && runs_.back().first_vector == run.first_vector &&
        runs_.back().vectors == run.vectors) {
      runs_.back().end = run.end;
      runs_.back().all = runs_.back().all && run.all;
    } else {
      runs_.push_back(run);
    }
  }
  return runs_;
}

}  // namespace cp
