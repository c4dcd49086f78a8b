// The mask of an attention as its tiles need it: which keys the queries of one panel see, as bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/kernels/tile_kernels.h"
#include "shared/plan/plan.h"

namespace cp {

// Whole panels of keys, [begin, end) of one tile, of which queries in the same vectors see some.
struct MaskRun {
  std::int64_t begin = 0, end = 0;
  std::int64_t first_vector = 0, vectors = 0;
  bool all = false;  // every query in the vectors sees every key
  bool operator==(const MaskRun&) const = default;
};

// The rows are the queries of the heads that share a key head: row r is query r / heads. A panel is `width`
// consecutive rows, with a bit for each. Panels are looked at one by one. The work grows with the keys that
// some query of a panel sees and with the number of slices, not with the product of slices and tiles.
class PanelMask {
 public:
  struct Sizes {
    std::int64_t q_len = 0, k_len = 0;
    std::int64_t heads = 1;       // query heads that share a key head
    std::int64_t tile_keys = 64;  // a multiple of panel_rows
  };
  PanelMask(std::span<const MaskSlice> slices, const Sizes& sizes, const TileKernels& kernels);

  std::int64_t panels() const { return panels_; }

  // Makes this panel the current one: the rows from panel * width on.
  void select(std::int64_t panel);
  // The tiles of keys that some row of the panel sees, ascending.
  std::span<const std::int64_t> tiles() const { return tiles_; }
  // The rows that see at least one key, as bits.
  std::uint64_t rows() const { return rows_; }
  // The rows that see the key, as bits. The key may be in the padding of its tile.
  const std::uint64_t* of(std::int64_t key) const { return bits_.data() + key; }
  // The runs of the tile's keys that are seen, ascending.
  const std::vector<MaskRun>& runs(std::int64_t tile);

 private:
  void index(std::span<const MaskSlice> slices);
  void add(const MaskSlice& slice);
  void add_keys(std::int64_t begin, std::int64_t end, std::uint64_t rows);
  std::uint64_t rows_between(std::int64_t begin, std::int64_t end) const;
  void touch(std::int64_t begin, std::int64_t end);

  std::vector<MaskSlice> slices_;
  Sizes sizes_;
  const TileKernels* kernels_;
  std::int64_t panels_ = 0, first_row_ = 0, panel_rows_ = 0;  // of the current panel
  std::vector<std::int64_t> slices_begin_,
      slices_of_;                    // panel -> its slices: [begin[p], begin[p + 1]) of slices_of
  std::vector<std::uint64_t> bits_;  // by key, of the current panel
  std::vector<bool> touched_;        // tiles
  std::vector<std::int64_t> tiles_;
  std::uint64_t rows_ = 0;
  std::vector<MaskRun> runs_;
};

// Calls f(begin, end) for each stretch of keys of the run that some row of the current panel sees.
template <class F>
void for_each_stretch(const PanelMask& mask, const MaskRun& run, F&& f) {
  for (std::int64_t begin = run.begin, end = begin; begin < run.end; begin = end + 1) {
    for (end = begin; end < run.end && *mask.of(end) != 0; ++end) {
    }
    if (begin < end) f(begin, end);
  }
}

}  // namespace cp
