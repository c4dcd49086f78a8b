// Dropout of the weights of an attention step on the host: the numbers of its rows, tile by tile.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/kernels/tile_kernels.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// The numbers of all rows of the set, in local order: they are below 2^32 (step_rules.cc).
std::vector<std::uint32_t> row_numbers(const IndexSet& rows);

// The numbers of a step's rows, written out. All parts of the step share them.
class DropoutRows {
 public:
  // Reads the seed, and what stands behind it, which must be there by now. `width` is that of a panel.
  DropoutRows(const AttentionDropout& dropout, const View& seed, const HostMemory& memory,
              std::int64_t iteration, std::int64_t width);

  // Makes the rows of a panel current: row r is query r / heads of head first_head + r % heads, both counted
  // in the step's views. Rows from `end` on are padding.
  void select(std::int64_t batch, std::int64_t first_head, std::int64_t heads, std::int64_t begin,
              std::int64_t end);
  // For a tile whose first row is this key of the step.
  TileDropout tile(std::int64_t key) const;

 private:
  const AttentionDropout& dropout_;
  std::uint64_t seed_ = 0;
  std::int64_t layer_ = 0, first_batch_ = 0;
  std::vector<std::uint32_t> all_queries_, all_keys_;
  std::vector<std::uint32_t> queries_, heads_;  // of the panel
};

// Nothing if the step has no dropout.
template <class Op>
std::optional<DropoutRows> dropout_rows(const Op& kernel, const HostMemory& memory, std::int64_t iteration,
                                        std::int64_t width) {
  if (kernel.dropout.probability == 0) return std::nullopt;
  return DropoutRows(kernel.dropout, kernel.seed, memory, iteration, width);
}

}  // namespace cp
