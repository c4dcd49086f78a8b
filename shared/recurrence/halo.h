// The halo of a short convolution along a split sequence: the rows before each chunk that its first rows see.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/recurrence/chunks.h"

namespace cp {

// Some of these rows, from the rank that has them to the one whose chunk follows; both may be one rank.
struct HaloPart {
  int from = 0, to = 0;       // indices among the cp ranks
  std::int64_t from_row = 0;  // the first one's place among the rows of `from`
  std::int64_t halo_row = 0;  // and in the halo of `to`
  std::int64_t rows = 0;
  bool operator==(const HaloPart&) const = default;
};

// The parts of all ranks, for a convolution that sees `reach` rows before its own; chunks are those of
// chunks_of(). A rank's halo has the rows before each of its chunks, chunk by chunk, in the order of the
// sequence: `reach` of them, or as many as the chunk's first document has there.
std::vector<HaloPart> halo_parts(const std::vector<Chunk>& chunks, std::int64_t reach);
// The rows of one rank's halo.
std::int64_t halo_rows(const std::vector<HaloPart>& parts, int index);

}  // namespace cp
