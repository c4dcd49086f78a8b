// Numbers: the one source of chance of everything that is drawn here. Equal seeds give equal numbers with
// every compiler and standard library, unlike the distributions of <random>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace cp::sim {

// splitmix64 (Steele, Lea and Flood 2014): every seed is as good as any other, also 0, 1, 2, ...
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    return mix(state_);
  }
  // A whole number, both ends included; `least` where there is none.
  std::int64_t in(std::int64_t least, std::int64_t most) {
    if (most <= least) return least;
    return least + static_cast<std::int64_t>(next() % (static_cast<std::uint64_t>(most - least) + 1));
  }
  bool one_in(int n) { return next() % static_cast<std::uint64_t>(n) == 0; }
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }
  template <class T>
  T of(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }
  template <class List>
  const auto& of(const List& values) {
    return values[below(values.size())];
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

  // A seed of its own for each pair.
  static std::uint64_t combine(std::uint64_t seed, std::uint64_t number) {
    return mix(mix(seed + 0x9e3779b97f4a7c15) ^ (number + 0xd1b54a32d192ed03));
  }

 private:
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace cp::sim
