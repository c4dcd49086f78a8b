// Swarm: how often each choice of a generator is taken in one batch of cases.
//
// Cases that mix everything evenly miss what needs much of one thing or none of another. So each batch draws
// its own weights, many of them 0 (Groce et al. 2012, "Swarm testing").
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

  // One of the values, each by the weight that its name has in this batch; evenly where all weights are 0.
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
  // Whether to take what has this name: never, seldom, often or always in a batch.
  bool take(Numbers& numbers, std::string_view name) const {
    constexpr std::uint64_t kOfEight[] = {0, 1, 1, 2, 4, 8};
    return numbers.next() % 8 < kOfEight[hashed(name) % 6];
  }

 private:
  std::uint64_t weight(std::string_view name) const {
    constexpr std::uint64_t kWeights[] = {0, 1, 1, 2, 4, 8};
    return kWeights[hashed(name) % 6];
  }
  std::uint64_t hashed(std::string_view name) const { return Hasher().add(seed_).add(name).digest().low; }

  std::uint64_t seed_;
};

}  // namespace cp::sim
