// A permutation of 0 .. count - 1 that needs no memory: a Feistel network (Luby and Rackoff 1988) over the
// next power of four, applied again while its result is not below count. At most three of four are not, so
// that it takes four rounds of it in the mean.
#pragma once

#include <cstdint>

namespace cp {

class Permutation {
 public:
  // Two seeds have, almost surely, different permutations. `count` is at least 1.
  Permutation(std::int64_t count, std::uint64_t seed);
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::int64_t count_;
  std::uint64_t seed_;
  int half_bits_ = 1;
};

}  // namespace cp
