#include "shared/recurrence/chunks.h"

#include <algorithm>

namespace cp {
namespace {

// A rank's rows as runs of neighbours, in local order.
void add_runs(const IndexSet& rows, int index, std::vector<Chunk>& chunks) {
  std::int64_t local = 0;
  for (const Run& run : rows) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t begin = run.begin + i * run.stride;
      const bool joins = local > 0 && chunks.back().begin + chunks.back().rows == begin;
      if (joins) {
        chunks.back().rows += run.run;
      } else {
        chunks.push_back({index, begin, run.run, local, false, false, {}});
      }
      local += run.run;
    }
  }
}

}  // namespace

std::vector<std::int64_t> document_starts(const std::vector<std::int64_t>& cu_seqlens, std::int64_t seq_len) {
  std::vector<std::int64_t> starts = {0};
  for (const std::int64_t end : cu_seqlens) {
    if (end > starts.back() && end < seq_len) starts.push_back(end);
  }
  return starts;
}

std::vector<Chunk> chunks_of(const std::vector<std::int64_t>& document_starts,
                             const std::vector<IndexSet>& rows_of) {
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < rows_of.size(); ++i) add_runs(rows_of[i], static_cast<int>(i), chunks);
  std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.begin < b.begin; });
  auto start = document_starts.begin();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    Chunk& chunk = chunks[i];
    chunk.comes_in = start == document_starts.end() || *start != chunk.begin;
    if (i > 0) chunks[i - 1].goes_on = chunk.comes_in;
    for (; start != document_starts.end() && *start < chunk.begin + chunk.rows; ++start) {
      if (*start > chunk.begin) chunk.starts.push_back(*start - chunk.begin);
    }
  }
  return chunks;
}

}  // namespace cp
