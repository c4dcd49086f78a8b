#include "shared/kernels/attention_dropout.h"

#include <cstring>

#include "shared/base/index.h"
#include "shared/kernels/philox.h"

namespace cp {
namespace {

// Numbers behind the last key, since a tile's last rows fill up a panel: at least the most rows of a panel,
// which are 8 (tile_kernels_code.h).
constexpr std::size_t kPadding = 16;

}  // namespace

std::vector<std::uint32_t> row_numbers(const IndexSet& rows) {
  std::vector<std::uint32_t> numbers;
  numbers.reserve(idx(size(rows)) + kPadding);
  for (const Run& run : rows) {
    for (std::int64_t i = 0; i < run.size(); ++i)
      numbers.push_back(static_cast<std::uint32_t>(run.begin + i / run.run * run.stride + i % run.run));
  }
  return numbers;
}

DropoutRows::DropoutRows(const AttentionDropout& dropout, const View& seed, const HostMemory& memory,
                         std::int64_t iteration, std::int64_t width)
    : dropout_(dropout),
      all_queries_(row_numbers(dropout.queries)),
      all_keys_(row_numbers(dropout.keys)),
      queries_(idx(width)),
      heads_(idx(width)) {
  std::int64_t numbers[kPlacedSeed] = {};
  std::memcpy(numbers, memory.at(seed, iteration), idx(seed.numel()) * sizeof numbers[0]);
  seed_ = static_cast<std::uint64_t>(numbers[0]);
  layer_ = dropout.layer + numbers[1], first_batch_ = dropout.first_batch + numbers[2];
  all_keys_.resize(all_keys_.size() + kPadding);
}

void DropoutRows::select(std::int64_t batch, std::int64_t first_head, std::int64_t heads, std::int64_t begin,
                         std::int64_t end) {
  for (std::int64_t column = 0; column < static_cast<std::int64_t>(queries_.size()); ++column) {
    const std::int64_t row = begin + column;
    const bool is_row = row < end;
    queries_[idx(column)] = is_row ? all_queries_[idx(row / heads)] : 0;
    heads_[idx(column)] =
        static_cast<std::uint32_t>((first_batch_ + batch) * dropout_.heads + dropout_.first_head +
                                   first_head + (is_row ? row % heads : 0));
  }
}

TileDropout DropoutRows::tile(std::int64_t key) const {
  const std::uint32_t threshold = dropout_threshold(dropout_.probability);
  return {.keys = all_keys_.data() + key,
          .queries = queries_.data(),
          .heads = heads_.data(),
          .layer = static_cast<std::uint32_t>(layer_),
          .seed = seed_,
          .threshold = threshold,
          .factor = dropout_factor(threshold)};
}

}  // namespace cp
