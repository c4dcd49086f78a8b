// Which rows change their rank where neighbouring layers have them at two homes (homes_of_layers()).
//
// Between tensor-parallel regions the rows of a micro-batch, [batch, rows of the sequence], lie on a rank one
// behind the other, and tp ranks that split rows have ceil(rows / row_ranks) of them each. Both ends of a
// move are derived from the index sets of the two homes, so that it is right for any of them, of any length.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/placement/index_set.h"

namespace cp {

struct RowSplit {
  std::int64_t batch = 1;  // sequences, whose rows lie alike
  int row_ranks = 1;       // tp ranks that split the rows of a cp rank (ParallelLayout::row_ranks())
  bool operator==(const RowSplit&) const = default;
};

// Neighbouring rows that go together: from row `from_row` on of one rank to row `to_row` on of another, or of
// the same one. Ranks are positions in RankGroups::row_group(): cp index * row_ranks + tp index.
struct RowMove {
  int from = 0, to = 0;
  std::int64_t from_row = 0, to_row = 0, rows = 0;
  bool operator==(const RowMove&) const = default;
};

// All rows of the sequences, each once. `from` and `to` have the rows of each cp rank, in local order; both
// hold each row of the sequence once. The moves of two ranks come in the same order on both.
std::vector<RowMove> row_moves(const std::vector<IndexSet>& from, const std::vector<IndexSet>& to,
                               const RowSplit& split);

}  // namespace cp
