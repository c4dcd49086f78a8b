// The generator of dropout: which weights of attention become 0.
//
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3") is a
// function of a counter and a key, without a state: any weight can be asked for alone, and whoever computes
// it, in whatever order, on a host or on a GPU, gets the same answer. The counter says which weight it is,
//   words 0 to 3: key / 4, query, batch * query heads + query head, layer
// all by their numbers in the global tensors, and the seed is the key. Of the four words that come out, word
// key % 4 belongs to the weight. It becomes 0 if the word is below probability * 2^32.
//
// Functions are constexpr, so that compilers of other processors take them too.
#pragma once

#include <cstdint>

namespace cp {

struct PhiloxWords {
  std::uint32_t words[4];
};

constexpr PhiloxWords philox(PhiloxWords counter, std::uint64_t key) {
  // The multipliers and the steps of the key, as the paper gives them.
  constexpr std::uint64_t kFirst = 0xd2511f53, kSecond = 0xcd9e8d57;
  constexpr std::uint32_t kFirstStep = 0x9e3779b9, kSecondStep = 0xbb67ae85;
  constexpr int kRounds = 10;
  auto first_key = static_cast<std::uint32_t>(key), second_key = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = kFirst * counter.words[0], b = kSecond * counter.words[2];
    counter = {
        {static_cast<std::uint32_t>(b >> 32) ^ counter.words[1] ^ first_key, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ counter.words[3] ^ second_key, static_cast<std::uint32_t>(a)}};
    first_key += kFirstStep, second_key += kSecondStep;
  }
  return counter;
}

// Words below this drop their weight. Of a probability below 1, to the nearest of 2^32 steps.
constexpr std::uint32_t dropout_threshold(double probability) {
  const double steps = probability * 0x1p32 + 0.5;
  return steps >= 0x1p32 ? 0xffffffffu : static_cast<std::uint32_t>(steps);
}

// What kept weights are multiplied by: 1 / (1 - probability), of the probability that the threshold has.
constexpr float dropout_factor(std::uint32_t threshold) {
  return static_cast<float>(0x1p32 / (0x1p32 - static_cast<double>(threshold)));
}

}  // namespace cp
