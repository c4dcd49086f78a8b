#include "sim/proof/ledger/key_runs.h"

#include <algorithm>

namespace cp::sim {

KeyRuns::KeyRuns(std::span<const std::int64_t> rows) {
  for (std::size_t i = 0; i < rows.size();) {
    const bool key = rows[i] >= 0;
    std::size_t end = i + 1;
    while (end < rows.size() && (key ? rows[end] == rows[end - 1] + 1 : rows[end] < 0)) ++end;
    const auto size = static_cast<std::int64_t>(end - i), local = static_cast<std::int64_t>(i);
    Piece* last = pieces_.empty() ? nullptr : &pieces_.back();
    const bool alike = key && last != nullptr && last->run.begin >= 0 && last->run.run == size;
    const std::int64_t stride =
        alike ? rows[i] - (last->run.begin + (last->run.count - 1) * last->run.stride) : 0;
    if (alike && stride > size && (last->run.count == 1 || stride == last->run.stride)) {
      last->run.stride = stride;
      ++last->run.count;
    } else {
      pieces_.push_back({{key ? rows[i] : -1, size, size, 1}, local});
    }
    i = end;
  }
}

std::size_t KeyRuns::first_piece(std::int64_t local) const {
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), local,
                                      [](std::int64_t at, const Piece& piece) { return at < piece.local; });
  return after == pieces_.begin() ? 0 : static_cast<std::size_t>(after - pieces_.begin() - 1);
}

}  // namespace cp::sim
