#include "runtime/cuda/score_rules.h"

#include <span>
#include <vector>

#include "shared/kernels/attention_dropout.h"

namespace cp::runtime {

ScoreTable::ScoreTable(double softcap, const AttentionDropout& dropout, bool placed) {
  rules_.softcap = static_cast<float>(softcap);
  if (dropout.probability == 0) return;
  std::vector<std::uint32_t> numbers = row_numbers(dropout.queries);
  const std::vector<std::uint32_t> keys = row_numbers(dropout.keys);
  numbers.insert(numbers.end(), keys.begin(), keys.end());
  numbers_ = GpuBytes(std::as_bytes(std::span<const std::uint32_t>(numbers)));
  rules_.queries = reinterpret_cast<const std::uint32_t*>(numbers_.data());
  rules_.keys = rules_.queries + size(dropout.queries);
  rules_.placed = placed;
  rules_.layer = static_cast<std::uint32_t>(dropout.layer);
  rules_.threshold = dropout_threshold(dropout.probability);
  rules_.factor = dropout_factor(rules_.threshold);
  rules_.first_batch = dropout.first_batch, rules_.first_head = dropout.first_head;
  rules_.heads = dropout.heads;
}

}  // namespace cp::runtime
