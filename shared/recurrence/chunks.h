// Chunks: what the ranks have of a sequence whose state goes from row to row.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/placement/index_set.h"

namespace cp {

// Neighbouring rows of the sequence that lie on one rank, one behind the other. Several documents may begin
// in it.
struct Chunk {
  int index = 0;                     // of the rank among the cp ranks
  std::int64_t begin = 0;            // global: rows [begin, begin + rows)
  std::int64_t rows = 0;             // at least 1
  std::int64_t local_row = 0;        // the first one's place among the rank's rows
  bool comes_in = false;             // its first document began before it: a state comes in
  bool goes_on = false;              // its last document ends behind it: a state goes out
  std::vector<std::int64_t> starts;  // rows of the chunk, counted from 0, at which documents begin; not 0

  // What comes in goes out again, with what the chunk's own rows make of it.
  bool hands_on() const { return comes_in && goes_on && starts.empty(); }
  // The rows of its first document, and where its last one begins: those that what comes in, and what goes
  // out, depend on.
  std::int64_t head_rows() const { return starts.empty() ? rows : starts.front(); }
  std::int64_t tail_begin() const { return starts.empty() ? 0 : starts.back(); }
};

// The rows at which documents begin, ascending: 0 first, empty documents left out. `cu_seqlens` is as in
// RecurrenceProblem; empty: there is one document.
std::vector<std::int64_t> document_starts(const std::vector<std::int64_t>& cu_seqlens, std::int64_t seq_len);

// All chunks, in the order of the sequence. `rows_of` has the rows of each rank, in local order; together
// they are all rows, each once. Documents begin at these rows, as document_starts() has them.
std::vector<Chunk> chunks_of(const std::vector<std::int64_t>& document_starts,
                             const std::vector<IndexSet>& rows_of);

}  // namespace cp
