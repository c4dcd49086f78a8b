#include "shared/transformer/row_moves.h"

#include <algorithm>
#include <cstddef>

#include "shared/base/error.h"
#include "shared/base/types.h"

namespace cp {
namespace {

// Consecutive rows of the sequence on one cp rank.
struct Piece {
  std::int64_t begin = 0, rows = 0;  // global
  int rank = 0;
  std::int64_t local = 0;  // of the first row among the rank's rows of a sequence

  std::int64_t end() const { return begin + rows; }
};

// In the order of the sequence.
std::vector<Piece> pieces_of(const std::vector<IndexSet>& rows_of) {
  std::vector<Piece> pieces;
  for (std::size_t rank = 0; rank < rows_of.size(); ++rank) {
    std::int64_t local = 0;
    for (const Run& run : rows_of[rank]) {
      for (std::int64_t i = 0; i < run.count; ++i, local += run.run)
        pieces.push_back({run.begin + i * run.stride, run.run, static_cast<int>(rank), local});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return pieces;
}

// Where the tp ranks of each cp rank have its rows.
class TpSplit {
 public:
  TpSplit(const std::vector<IndexSet>& rows_of, const RowSplit& split) : split_(split) {
    for (const IndexSet& rows : rows_of) {
      of_sequence_.push_back(size(rows));
      of_tp_rank_.push_back(std::max<std::int64_t>(1, ceil_div(split.batch * size(rows), split.row_ranks)));
    }
  }
  // A row among those of all sequences on a cp rank.
  std::int64_t position(int rank, std::int64_t sequence, std::int64_t local) const {
    return sequence * of_sequence_[static_cast<std::size_t>(rank)] + local;
  }
  int row_rank(int rank, std::int64_t position) const {
    return rank * split_.row_ranks + static_cast<int>(position / each(rank));
  }
  std::int64_t row(int rank, std::int64_t position) const { return position % each(rank); }
  // How many rows the tp rank with this one has from it on.
  std::int64_t left(int rank, std::int64_t position) const { return each(rank) - row(rank, position); }

 private:
  std::int64_t each(int rank) const { return of_tp_rank_[static_cast<std::size_t>(rank)]; }

  RowSplit split_;
  std::vector<std::int64_t> of_sequence_, of_tp_rank_;  // by cp rank
};

}  // namespace

std::vector<RowMove> row_moves(const std::vector<IndexSet>& from, const std::vector<IndexSet>& to,
                               const RowSplit& split) {
  const std::vector<Piece> sources = pieces_of(from), targets = pieces_of(to);
  const TpSplit from_split(from, split), to_split(to, split);
  std::vector<RowMove> moves;
  for (std::int64_t sequence = 0; sequence < split.batch; ++sequence) {
    auto target = targets.begin();
    for (const Piece& source : sources) {
      for (std::int64_t row = source.begin; row < source.end();) {
        while (target != targets.end() && target->end() <= row) ++target;
        CP_INVARIANT(target != targets.end() && target->begin <= row, "row ", row, " has no home to go to");
        const std::int64_t leaves =
                               from_split.position(source.rank, sequence, source.local + row - source.begin),
                           arrives =
                               to_split.position(target->rank, sequence, target->local + row - target->begin);
        const std::int64_t rows =
            std::min({source.end() - row, target->end() - row, from_split.left(source.rank, leaves),
                      to_split.left(target->rank, arrives)});
        moves.push_back({from_split.row_rank(source.rank, leaves), to_split.row_rank(target->rank, arrives),
                         from_split.row(source.rank, leaves), to_split.row(target->rank, arrives), rows});
        row += rows;
      }
    }
  }
  return moves;
}

}  // namespace cp
