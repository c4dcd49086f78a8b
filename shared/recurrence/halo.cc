#include "shared/recurrence/halo.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace cp {
namespace {

// The last `reach` rows before chunks[end], or behind all chunks, by parts to the rank `to`: of the chunks
// before, from the nearest rows back, since a chunk may have fewer, and behind a cache what is missing then.
// They are in the order of the sequence, without places in a halo.
std::vector<HaloPart> rows_before(const std::vector<Chunk>& chunks, std::size_t end, std::int64_t reach,
                                  int to, bool behind_cache) {
  std::vector<HaloPart> parts;
  std::int64_t missing = reach;
  for (std::size_t before = end; missing > 0 && before-- > 0;) {
    const Chunk& source = chunks[before];
    const std::int64_t rows = std::min(missing, source.rows - source.tail_begin());
    parts.push_back({source.index, to, source.local_row + source.rows - rows, 0, rows, false});
    missing = source.hands_on() || behind_cache ? missing - rows : 0;
  }
  if (behind_cache && missing > 0)
    parts.push_back({chunks.front().index, to, reach - missing, 0, missing, true});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<HaloPart> all_halo_parts(const std::vector<Chunk>& chunks, std::int64_t reach,
                                     bool behind_cache) {
  std::vector<HaloPart> parts;
  std::map<int, std::int64_t> ends;  // of each rank's halo
  if (behind_cache) ends[chunks.front().index] = reach;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i].comes_in) continue;
    for (HaloPart& part : rows_before(chunks, i, reach, chunks[i].index, behind_cache)) {
      part.halo_row = std::exchange(ends[part.to], ends[part.to] + part.rows);
      parts.push_back(part);
    }
  }
  return parts;
}

}  // namespace

std::vector<HaloPart> halo_parts(const std::vector<Chunk>& chunks, std::int64_t reach) {
  return all_halo_parts(chunks, reach, false);
}

std::int64_t halo_rows_before(const std::vector<std::int64_t>& document_starts, const Chunk& chunk,
                              std::int64_t reach) {
  // The document that has the row before the chunk.
  const std::int64_t start =
      *std::prev(std::lower_bound(document_starts.begin(), document_starts.end(), chunk.begin));
  return std::min(reach, chunk.begin - start);
}

std::vector<HaloPart> halo_parts_behind_cache(const std::vector<Chunk>& chunks, std::int64_t reach) {
  return all_halo_parts(chunks, reach, true);
}

std::vector<HaloPart> parts_to_cache(const std::vector<Chunk>& chunks, std::int64_t reach) {
  std::vector<HaloPart> parts = rows_before(chunks, chunks.size(), reach, chunks.front().index, true);
  std::int64_t at = 0;
  for (HaloPart& part : parts) part.halo_row = std::exchange(at, at + part.rows);
  return parts;
}

std::int64_t halo_rows(const std::vector<HaloPart>& parts, int index) {
  std::int64_t rows = 0;
  for (const HaloPart& part : parts) rows += part.to == index ? part.rows : 0;
  return rows;
}

}  // namespace cp
