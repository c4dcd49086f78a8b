// Swarm decides how often each choice of a generator is taken in one batch of cases.
//
// Generators that mix everything evenly miss the bugs that need much of one thing or none of another. So each
// batch draws its own weights, many of them 0 (Groce et al. 2012, "Swarm testing").
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "shared/base/digest.h"
#include "sim/base/numbers.h"

namespace cp::sim {

class Swarm {
 public:
  explicit Swarm(std::uint64_t seed) : seed_(seed) {}

  // Chooses one of the values, by the weights that their names have in this batch. If all weights are 0, it
  // chooses evenly.
  template <class T>
  T choose(Numbers& numbers, std::initializer_list<std::pair<std::string_view, T>> choices) const {
    std::uint64_t total = 0;
    for (const auto& [name, value] : choices) total += weight(name);
    if (total == 0) return (choices.begin() + numbers.below(choices.size()))->second;
    std::uint64_t left = numbers.next() % total;
    for (const auto& [name, value] : choices) {
      if (left < weight(name)) return value;
      left -= weight(name);
    }
    return choices.begin()->second;
  }
  // Whether to take what has this name. Within a batch the answer is yes never, seldom, often or always.
  bool take(Numbers& numbers, std::string_view name) const {
    // In eighths. Chosen like kWeights: one name in six is never taken in a batch, and one always.
    constexpr std::uint64_t kOfEight[] = {0, 1, 1, 2, 4, 8};
    return numbers.next() % 8 < kOfEight[hashed(name) % 6];
  }

 private:
  std::uint64_t weight(std::string_view name) const {
    // Chosen: one name in six is left out of a batch, and the others differ by up to a factor of 8.
    constexpr std::uint64_t kWeights[] = {0, 1, 1, 2, 4, 8};
    return kWeights[hashed(name) % 6];
  }
  std::uint64_t hashed(std::string_view name) const { return Hasher().add(seed_).add(name).digest().low; }

  std::uint64_t seed_;
};

}  // namespace cp::sim
