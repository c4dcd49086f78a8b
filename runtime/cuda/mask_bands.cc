#include "runtime/cuda/mask_bands.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace cp::runtime {
namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 61;  // beyond every row and column

template <class T>
void append(std::vector<std::byte>& bytes, const std::vector<T>& values) {
  const std::size_t begin = bytes.size();
  bytes.resize(begin + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data() + begin, values.data(), values.size() * sizeof(T));
}

}  // namespace

Band band_of(const MaskSlice& slice) {
  Band band{slice.q_begin, slice.q_begin + slice.q_len, slice.k_begin, slice.k_begin + slice.k_len, -kFar,
            kFar};
  if (slice.kind == MaskSlice::Kind::full) return band;
  band.high = std::clamp(slice.diagonal, -kFar, kFar) + slice.k_begin - slice.q_begin;
  if (slice.kind == MaskSlice::Kind::window) band.low = band.high - std::min(slice.window, kFar);
  return band;
}

Band transposed(const Band& band) {
  return {band.column_begin, band.column_end, band.row_begin, band.row_end, -band.high - 1, -band.low - 1};
}

MaskBands::MaskBands(const std::vector<MaskSlice>& slices, bool rows_are_keys, std::int64_t rows,
                     std::int64_t tile_rows) {
  std::vector<Band> bands;
  for (const MaskSlice& slice : slices) {
    if (slice.q_len == 0 || slice.k_len == 0) continue;
    bands.push_back(rows_are_keys ? transposed(band_of(slice)) : band_of(slice));
  }
  const std::int64_t tiles = ceil_div(rows, tile_rows);
  std::vector<std::vector<std::int32_t>> of_tile(static_cast<std::size_t>(tiles));
  for (std::size_t i = 0; i < bands.size(); ++i) {
    for (std::int64_t tile = bands[i].row_begin / tile_rows; tile * tile_rows < bands[i].row_end; ++tile) {
      of_tile[static_cast<std::size_t>(tile)].push_back(static_cast<std::int32_t>(i));
    }
  }
  std::vector<std::int32_t> ids, begins = {0};
  for (const auto& list : of_tile) {
    ids.insert(ids.end(), list.begin(), list.end());
    CP_INVARIANT(ids.size() <= std::numeric_limits<std::int32_t>::max(), slices.size(), " mask slices");
    begins.push_back(static_cast<std::int32_t>(ids.size()));
  }

  std::vector<std::byte> bytes;
  append(bytes, bands), append(bytes, ids), append(bytes, begins);
  data_ = GpuBytes(bytes);
  table_.bands = reinterpret_cast<const Band*>(data_.data());
  table_.ids = reinterpret_cast<const std::int32_t*>(data_.data() + bands.size() * sizeof(Band));
  table_.begins = table_.ids + ids.size();
}

}  // namespace cp::runtime
