#include "runtime/cuda/score_rules.h"

#include <span>
#include <vector>

#include "shared/base/index.h"

namespace cp::runtime {
namespace {

void append(std::vector<std::uint32_t>& numbers, const IndexSet& rows) {
  for (const Run& run : rows) {
    for (std::int64_t block = 0; block < run.count; ++block) {
      for (std::int64_t i = 0; i < run.run; ++i)
        numbers.push_back(static_cast<std::uint32_t>(run.begin + block * run.stride + i));
    }
  }
}

}  // namespace

ScoreTable::ScoreTable(double softcap, const AttentionDropout& dropout) {
  rules_.softcap = static_cast<float>(softcap);
  if (dropout.probability == 0) return;
  std::vector<std::uint32_t> numbers;
  append(numbers, dropout.queries), append(numbers, dropout.keys);
  numbers_ = GpuBytes(std::as_bytes(std::span<const std::uint32_t>(numbers)));
  rules_.queries = reinterpret_cast<const std::uint32_t*>(numbers_.data());
  rules_.keys = rules_.queries + size(dropout.queries);
  rules_.layer = static_cast<std::uint32_t>(dropout.layer);
  rules_.threshold = dropout_threshold(dropout.probability);
  rules_.factor = dropout_factor(rules_.threshold);
  rules_.first_batch = dropout.first_batch, rules_.first_head = dropout.first_head;
  rules_.heads = dropout.heads;
}

}  // namespace cp::runtime
