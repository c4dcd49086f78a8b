// The pieces of a sequence that ranks have, found row by row: for the ledgers of recurrences, apart from
// shared/recurrence/chunks.h.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/recurrence/recurrence_plan.h"

namespace cp::sim {

struct SequencePiece {
  int index = 0;                    // of the rank among the cp ranks
  std::int64_t begin = 0, end = 0;  // rows of the sequence
};

class SequencePieces {
 public:
  explicit SequencePieces(const RecurrenceRequest& request);

  const std::vector<SequencePiece>& all() const { return pieces_; }  // in the order of the sequence
  // The rows of a rank, in local order.
  const std::vector<std::int64_t>& rows_of(int index) const { return rows_[static_cast<std::size_t>(index)]; }
  // The document of a row: its first row, and the one behind its last.
  std::int64_t document_begin(std::int64_t row) const { return begin_[static_cast<std::size_t>(row)]; }
  std::int64_t document_end(std::int64_t row) const { return end_[static_cast<std::size_t>(row)]; }

  // Whether the state goes from the piece to the next one, or the document ends between them.
  bool joins_next(std::size_t piece) const;
  // Whether what comes in to the piece also leaves it: it is the inside of one document.
  bool is_inside(std::size_t piece) const;

 private:
  std::vector<SequencePiece> pieces_;
  std::vector<std::vector<std::int64_t>> rows_;
  std::vector<std::int64_t> begin_, end_;
};

}  // namespace cp::sim
