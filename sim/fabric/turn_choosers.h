// The choosers of BatonOrder's kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/fabric/baton_order.h"

namespace cp::sim {

// splitmix64: the same numbers in every standard library, unlike the distributions of <random>.
class TurnGenerator {
 public:
  explicit TurnGenerator(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t count) {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<std::size_t>((z ^ (z >> 31)) % count);
  }

 private:
  std::uint64_t state_;
};

// Not for random, which BatonScheduler draws itself. Throws InvalidInput for values that the order's kind does not take.
std::shared_ptr<TurnChooser> make_chooser(const BatonOrder& order, std::uint64_t seed);

}  // namespace cp::sim
