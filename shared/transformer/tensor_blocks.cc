#include "shared/transformer/tensor_blocks.h"

#include <algorithm>
#include <utility>

namespace cp {

void TensorBlocks::begin(std::string prefix) { prefix_ = std::move(prefix), blocks_.clear(); }

std::vector<TensorBlock> TensorBlocks::take() {
  std::sort(blocks_.begin(), blocks_.end(),
            [](const TensorBlock& a, const TensorBlock& b) { return a.begin < b.begin; });
  return std::exchange(blocks_, {});
}

void TensorBlocks::matrix(const Weight& weight, const std::string& name, std::int64_t first_row,
                          std::int64_t first_column) {
  if (weight.numel() > 0)
    blocks_.push_back({prefix_ + name, weight.begin, weight.rows, weight.columns, first_row, first_column});
}

void TensorBlocks::vector(const Weight& weight, const std::string& name, std::int64_t first) {
  matrix(weight, name, 0, first);
}

}  // namespace cp
