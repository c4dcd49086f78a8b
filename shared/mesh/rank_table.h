// An immutable list of distinct ranks that finds the position of a rank in constant time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "shared/base/types.h"

namespace cp {

class RankTable {
 public:
  // Throws InvalidInput if the list is empty, or if a rank is negative or comes twice.
  explicit RankTable(std::vector<Rank> ranks);

  const std::vector<Rank>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  Rank lowest() const { return lowest_; }
  Rank highest() const { return highest_; }

  // The position of `rank` in ranks(), or kAbsent. Takes constant time.
  static constexpr int kAbsent = -1;
  int find(Rank rank) const {
    if (rank < lowest_ || rank > highest_) return kAbsent;
    const Rank offset = rank - lowest_;
    if (consecutive_) return offset;
    if (!dense_.empty()) return dense_[static_cast<std::size_t>(offset)];
    const auto found = sparse_.find(rank);
    return found == sparse_.end() ? kAbsent : found->second;
  }

 private:
  // Records the position of ranks_[position]; returns the position that the rank had before, or kAbsent.
  int insert(int position);

  std::vector<Rank> ranks_;
  Rank lowest_ = 0;
  Rank highest_ = 0;
  bool consecutive_ = false;  // ranks_[i] == lowest_ + i: by far the most common list, and it needs no table
  std::vector<int> dense_;    // position by rank - lowest_, unless the ranks lie far apart
  std::unordered_map<Rank, int> sparse_;  // position by rank, if they do lie far apart
};

}  // namespace cp
