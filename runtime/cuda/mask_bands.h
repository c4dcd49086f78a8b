// MaskBands is the mask of an attention in the form that its kernels read: for each tile of rows, the slices
// that concern it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/kernel_launch.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// A mask slice in the coordinates of the views: row r of [row_begin, row_end) sees column c of [column_begin,
// column_end) if r + low < c <= r + high.
struct Band {
  std::int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0, low = 0, high = 0;

  CP_DEVICE bool sees(std::int64_t row, std::int64_t column) const {
    return row >= row_begin && row < row_end && column > row + low && column <= row + high;
  }
};

Band band_of(const MaskSlice& slice);  // rows are queries, columns keys
Band transposed(const Band& band);     // rows are keys, columns queries

// The bands of each tile. Those of the rows from tile * tile_rows to (tile + 1) * tile_rows are bands[ids[i]]
// for begins[tile] <= i < begins[tile + 1].
struct BandTable {
  const Band* bands = nullptr;
  const std::int32_t *ids = nullptr, *begins = nullptr;
};

// Owns such a table on the current device.
class MaskBands {
 public:
  // Blocks until the table is there.
  MaskBands(const std::vector<MaskSlice>& slices, bool rows_are_keys, std::int64_t rows,
            std::int64_t tile_rows);
  BandTable table() const { return table_; }

 private:
  GpuBytes data_;
  BandTable table_;
};

// The part of a band that concerns one tile of rows.
struct BandPart {
  std::int64_t row_begin, row_end;        // the band's rows in the tile
  std::int64_t column_begin, column_end;  // the columns that at least one of these rows sees
};
CP_DEVICE BandPart part_of(const Band& band, std::int64_t row, std::int64_t tile_rows) {
  BandPart part;
  part.row_begin = row < band.row_begin ? band.row_begin : row;
  part.row_end = band.row_end < row + tile_rows ? band.row_end : row + tile_rows;
  const std::int64_t first = part.row_begin + band.low + 1, end = part.row_end + band.high;
  part.column_begin = band.column_begin < first ? first : band.column_begin;
  part.column_end = band.column_end < end ? band.column_end : end;
  return part;
}

}  // namespace cp::runtime
