#include "shared/mesh/rank_table.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

// A list whose ranks span at most this many times its length gets a dense table, any other list a hash table.
// Chosen: a slice along the outer of two axes spans as many times its length as the inner axes have ranks,
// and groups of neighbours (tp, or cp and tp) have up to some dozens. At the limit the dense table takes 256
// bytes a rank, which is several times what a hash table takes: this favours time over memory. No answer
// depends on it.
constexpr std::int64_t kMaxSpread = 64;

bool is_consecutive(const std::vector<Rank>& ranks) {
  return std::adjacent_find(ranks.begin(), ranks.end(), [](Rank a, Rank b) { return b - 1 != a; }) ==
         ranks.end();
}

}  // namespace

RankTable::RankTable(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {
  if (ranks_.empty()) throw InvalidInput("a list of ranks is empty; name at least one rank");
  const auto [lowest, highest] = std::minmax_element(ranks_.begin(), ranks_.end());
  lowest_ = *lowest;
  highest_ = *highest;
  if (lowest_ < 0) throw InvalidInput(str("rank ", lowest_, " is negative; ranks count from 0"));
  consecutive_ = is_consecutive(ranks_);
  if (consecutive_) return;

  const std::int64_t span = std::int64_t{highest_} - lowest_ + 1;
  if (span <= kMaxSpread * size()) {
    dense_.assign(static_cast<std::size_t>(span), kAbsent);
  } else {
    sparse_.reserve(ranks_.size());
  }
  for (int position = 0; position < size(); ++position) {
    const int earlier = insert(position);
    if (earlier == kAbsent) continue;
    throw InvalidInput(str("rank ", ranks_[static_cast<std::size_t>(position)], " comes twice, at positions ",
                           earlier, " and ", position, "; each rank may come once"));
  }
}

int RankTable::insert(int position) {
  const Rank rank = ranks_[static_cast<std::size_t>(position)];
  if (!dense_.empty()) return std::exchange(dense_[static_cast<std::size_t>(rank - lowest_)], position);
  const auto [entry, inserted] = sparse_.emplace(rank, position);
  return inserted ? kAbsent : entry->second;
}

}  // namespace cp
