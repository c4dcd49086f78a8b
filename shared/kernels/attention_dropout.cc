#include "shared/kernels/attention_dropout.h"

#include <cstring>

#include "shared/base/index.h"
#include "shared/kernels/philox.h"

namespace cp {
namespace {

// The tiles' last rows are padding: as many more as the longest panel of keys.
constexpr std::size_t kPadding = 16;

std::vector<std::uint32_t> written_out(const IndexSet& rows) {
  std::vector<std::uint32_t> numbers;
  numbers.reserve(idx(size(rows)) + kPadding);
  for (const Run& run : rows) {
    for (std::int64_t block = 0; block < run.count; ++block) {
      for (std::int64_t i = 0; i < run.run; ++i)
        numbers.push_back(static_cast<std::uint32_t>(run.begin + block * run.stride + i));
    }
  }
  return numbers;
}

}  // namespace

DropoutRows::DropoutRows(const AttentionDropout& dropout, const View& seed, const HostMemory& memory,
                         std::int64_t iteration, std::int64_t width)
    : dropout_(dropout),
      all_queries_(written_out(dropout.queries)),
      all_keys_(written_out(dropout.keys)),
      queries_(idx(width)),
      heads_(idx(width)) {
  std::memcpy(&seed_, memory.at(seed, iteration), sizeof seed_);
  all_keys_.resize(all_keys_.size() + kPadding);
}

void DropoutRows::select(std::int64_t batch, std::int64_t first_head, std::int64_t heads, std::int64_t begin,
                         std::int64_t end) {
  for (std::int64_t column = 0; column < static_cast<std::int64_t>(queries_.size()); ++column) {
    const std::int64_t row = begin + column;
    const bool is_row = row < end;
    queries_[idx(column)] = is_row ? all_queries_[idx(row / heads)] : 0;
    heads_[idx(column)] =
        static_cast<std::uint32_t>((dropout_.first_batch + batch) * dropout_.heads + dropout_.first_head +
                                   first_head + (is_row ? row % heads : 0));
  }
}

TileDropout DropoutRows::tile(std::int64_t key) const {
  const std::uint32_t threshold = dropout_threshold(dropout_.probability);
  return {.keys = all_keys_.data() + key,
          .queries = queries_.data(),
          .heads = heads_.data(),
          .layer = static_cast<std::uint32_t>(dropout_.layer),
          .seed = seed_,
          .threshold = threshold,
          .factor = dropout_factor(threshold)};
}

}  // namespace cp
