#include "shared/recurrence/halo.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cp {

std::vector<HaloPart> halo_parts(const std::vector<Chunk>& chunks, std::int64_t reach) {
  std::vector<HaloPart> parts;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = chunks[i];
    std::vector<HaloPart> of_chunk;
    std::int64_t missing = chunk.comes_in ? reach : 0;
    // From the nearest rows back: a chunk may have fewer than the convolution sees.
    for (std::size_t before = i; missing > 0 && before-- > 0;) {
      const Chunk& source = chunks[before];
      const std::int64_t rows = std::min(missing, source.rows - source.tail_begin());
      of_chunk.push_back({source.index, chunk.index, source.local_row + source.rows - rows, 0, rows});
      missing = source.hands_on() ? missing - rows : 0;
    }
    parts.insert(parts.end(), of_chunk.rbegin(), of_chunk.rend());
  }
  std::map<int, std::int64_t> ends;
  for (HaloPart& part : parts) part.halo_row = std::exchange(ends[part.to], ends[part.to] + part.rows);
  return parts;
}

std::int64_t halo_rows(const std::vector<HaloPart>& parts, int index) {
  std::int64_t rows = 0;
  for (const HaloPart& part : parts) rows += part.to == index ? part.rows : 0;
  return rows;
}

}  // namespace cp
