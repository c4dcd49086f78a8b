// What exact attention does to scores and weights beside the scale, the mask and the softmax: a softcap, and
// dropout by the generator of shared/kernels/philox.h. Kernels without either have no trace of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "runtime/cuda/attention_tiles.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/kernel_launch.h"
#include "shared/kernels/philox.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

struct NoScoreRules {};

// Calls f(std::integral_constant<int, columns of a block's sums>{}). Kernels with rules have one width: they
// are seldom asked for narrow heads, and each takes long to compile.
template <class RulesOfScores, class F>
void with_columns_under(std::int64_t dim, F&& f) {
  if constexpr (std::is_same_v<RulesOfScores, NoScoreRules>)
    with_columns(dim, f);
  else
    f(std::integral_constant<int, kMostColumns>{});
}

struct ScoreRules {
  float softcap = 0;  // 0: none
  // Dropout; a factor of 0 says that there is none. Numbers of the step's rows among all.
  float factor = 0;
  const std::uint32_t *queries = nullptr, *keys = nullptr;
  const std::uint64_t* seed = nullptr;  // on the device
  bool placed = false;                  // whether two numbers stand behind it (kPlacedSeed)
  std::uint32_t layer = 0, threshold = 0;
  std::int64_t first_batch = 0, first_head = 0, heads = 0;

  CP_DEVICE std::uint32_t layer_number() const {
    return placed ? layer + static_cast<std::uint32_t>(seed[1]) : layer;
  }
  CP_DEVICE std::int64_t first_entry() const {
    return placed ? first_batch + static_cast<std::int64_t>(seed[2]) : first_batch;
  }

  CP_DEVICE float capped(float score) const {
    return softcap == 0 ? score : softcap * tanhf(score / softcap);
  }
  // The derivative of what capped() returned.
  CP_DEVICE float slope(float capped_score) const {
    const float t = softcap == 0 ? 0 : capped_score / softcap;
    return 1 - t * t;
  }
};

// The generator's words. A call: a thread asks for those of 32 pairs, and ten rounds at each place would be
// most of a kernel's code, and of the time that it takes to compile.
CP_DEVICE_CALL PhiloxWords words_of_keys(std::uint32_t four, std::uint32_t query, std::uint32_t head,
                                         std::uint32_t layer, std::uint64_t seed) {
  return philox({{four, query, head, layer}}, seed);
}

// Says which weights stay, and remembers the generator's words of the last four keys.
class KeptWeights {
 public:
  // Of a query head, both counted in the step's views.
  CP_DEVICE KeptWeights(const ScoreRules& rules, std::int64_t batch, std::int64_t head)
      : rules_(rules),
        head_(static_cast<std::uint32_t>((rules.first_entry() + batch) * rules.heads + rules.first_head +
                                         head)) {}

  // What the weight of the step's query and key is multiplied by.
  CP_DEVICE float factor(std::int64_t query, std::int64_t key) {
    if (rules_.factor == 0) return 1;
    const std::uint32_t q = rules_.queries[query], k = rules_.keys[key];
    if (!known_ || q != query_ || k / 4 != four_) {
      known_ = true, query_ = q, four_ = k / 4;
      words_ = words_of_keys(four_, q, head_, rules_.layer_number(), *rules_.seed);
    }
    // Not as words_.words[k % 4], which would put the words into memory.
    const std::uint32_t low = k % 2 == 0 ? words_.words[0] : words_.words[1],
                        high = k % 2 == 0 ? words_.words[2] : words_.words[3], word = k % 4 < 2 ? low : high;
    return word < rules_.threshold ? 0 : rules_.factor;
  }

 private:
  const ScoreRules& rules_;
  std::uint32_t head_, query_ = 0, four_ = 0;
  bool known_ = false;
  PhiloxWords words_{};
};

// Owns the numbers of a step's rows on the current device.
class ScoreTable {
 public:
  // Blocks until they are there.
  template <class Op>
  explicit ScoreTable(const Op& kernel)
      : ScoreTable(kernel.softcap, kernel.dropout, kernel.seed.numel() == kPlacedSeed) {}

  bool changes_scores() const { return rules_.softcap != 0 || rules_.factor != 0; }
  ScoreRules rules(const std::byte* seed) const {
    ScoreRules rules = rules_;
    rules.seed = reinterpret_cast<const std::uint64_t*>(seed);
    return rules;
  }

 private:
  ScoreTable(double softcap, const AttentionDropout& dropout, bool placed);

  GpuBytes numbers_;
  ScoreRules rules_;
};

}  // namespace cp::runtime
