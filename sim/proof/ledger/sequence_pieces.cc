#include "sim/proof/ledger/sequence_pieces.h"

#include <algorithm>

#include "shared/placement/index_set.h"

namespace cp::sim {

SequencePieces::SequencePieces(const RecurrenceRequest& request) {
  const std::int64_t length = request.problem.seq_len;
  begin_.resize(static_cast<std::size_t>(length)), end_.resize(static_cast<std::size_t>(length));
  std::vector<std::int64_t> cuts = request.problem.cu_seqlens;
  if (cuts.empty()) cuts = {0, length};
  for (std::size_t d = 0; d + 1 < cuts.size(); ++d) {
    for (std::int64_t row = cuts[d]; row < cuts[d + 1]; ++row)
      begin_[static_cast<std::size_t>(row)] = cuts[d], end_[static_cast<std::size_t>(row)] = cuts[d + 1];
  }
  const Layout layout = row_layout(request, 1, 1, DType::f32);
  for (std::size_t i = 0; i < request.ranks.size(); ++i) {
    const IndexSet set = indices(layout, 1, request.ranks[i]);
    std::vector<std::int64_t>& rows = rows_.emplace_back();
    for (std::int64_t local = 0; local < size(set); ++local) {
      rows.push_back(to_global(set, local));
      const bool continues = local > 0 && rows[rows.size() - 2] + 1 == rows.back();
      if (!continues) pieces_.push_back({static_cast<int>(i), rows.back(), rows.back()});
      pieces_.back().end = rows.back() + 1;
    }
  }
  std::sort(pieces_.begin(), pieces_.end(),
            [](const SequencePiece& a, const SequencePiece& b) { return a.begin < b.begin; });
}

bool SequencePieces::joins_next(std::size_t piece) const {
  return piece + 1 < pieces_.size() && document_begin(pieces_[piece + 1].begin) < pieces_[piece + 1].begin;
}

bool SequencePieces::is_inside(std::size_t piece) const {
  const SequencePiece& it = pieces_[piece];
  return document_begin(it.begin) < it.begin && document_end(it.begin) > it.end;
}

}  // namespace cp::sim
