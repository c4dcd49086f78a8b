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
  bool cached = false;  // from_row counts among the cached rows, which are the first ones of `from`'s halo
  bool operator==(const HaloPart&) const = default;
};

// The parts of all ranks, for a convolution that sees `reach` rows before its own; chunks are those of
// chunks_of(). A rank's halo has the rows before each of its chunks, chunk by chunk, in the order of the
// sequence: `reach` of them, or as many as the chunk's first document has there.
std::vector<HaloPart> halo_parts(const std::vector<Chunk>& chunks, std::int64_t reach);
// How many rows the parts of a chunk that comes in have together. Documents begin at these rows, ascending,
// the first one at 0.
std::int64_t halo_rows_before(const std::vector<std::int64_t>& document_starts, const Chunk& chunk,
                              std::int64_t reach);
// Parts of a sequence that goes on from `reach` cached rows (RecurrenceProblem::cached_state), which the
// rank of the first row has. They are the first chunk's halo, and so the first rows of that rank's halo: it
// copies them there itself, and parts that need some take them from there.
std::vector<HaloPart> halo_parts_behind_cache(const std::vector<Chunk>& chunks, std::int64_t reach);
// Of such a sequence: the last `reach` rows, which are cached in turn, by parts to the rank of the first row.
// halo_row is a row's place among them. Where the sequence is shorter, some of them were cached before.
std::vector<HaloPart> parts_to_cache(const std::vector<Chunk>& chunks, std::int64_t reach);
// The rows of one rank's halo that parts bring.
std::int64_t halo_rows(const std::vector<HaloPart>& parts, int index);

}  // namespace cp
