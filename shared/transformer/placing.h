// Placing lays tensors one behind the other: those below the threshold, and behind all of these the others
// (weights.h).
#pragma once

#include <cstdint>

#include "shared/transformer/weights.h"

namespace cp {

class Placing {
 public:
  // `small` is how many elements the tensors below the threshold have.
  Placing(std::int64_t threshold, std::int64_t small)
      : threshold_(threshold), small_(small), end_{0, small} {}
  Weight matrix(std::int64_t rows, std::int64_t columns) {
    std::int64_t& end = rows * columns < threshold_ ? end_.small : end_.other;
    const Weight weight{end, rows, columns};
    end = weight.end();
    return weight;
  }
  Weight vector(std::int64_t numel) { return matrix(1, numel); }

  // Where the tensors laid so far end.
  struct Ends {
    std::int64_t small = 0, other = 0;
  };
  Ends begin() const { return {0, small_}; }
  Ends end() const { return end_; }
  static WeightRanges between(Ends from, Ends to) {
    return {Weight{from.small, 1, to.small - from.small}, Weight{from.other, 1, to.other - from.other}};
  }

 private:
  std::int64_t threshold_, small_;
  Ends end_;
};

}  // namespace cp
