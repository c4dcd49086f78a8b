// TensorBlocks lists the blocks of tensors that one piece has on a tp rank (tensor_places.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/transformer/tensor_places.h"
#include "shared/transformer/weights.h"

namespace cp {

class TensorBlocks {
 public:
  explicit TensorBlocks(std::int64_t tp) : tp_(tp) {}

  // From here on, names begin with this.
  void begin(std::string prefix);
  // The blocks since then, by where they begin.
  std::vector<TensorBlock> take();

  // Rows of a tensor from first_row on; nothing if the layer lacks it.
  void matrix(const Weight& weight, const std::string& name, std::int64_t first_row,
              std::int64_t first_column = 0);
  void vector(const Weight& weight, const std::string& name, std::int64_t first = 0);
  // The tp rank's columns of a matrix whose rows are added up over tp ranks.
  void columns(const Weight& weight, const std::string& name) {
    matrix(weight, name, 0, tp_ * weight.columns);
  }
  // Its rows, or where rows are fewer than ranks those that it shares with its neighbours.
  void rows(const Weight& weight, const std::string& name) { matrix(weight, name, tp_ * weight.rows); }
  std::int64_t tp() const { return tp_; }  // which of the tp ranks it is

 private:
  const std::int64_t tp_;
  std::string prefix_;
  std::vector<TensorBlock> blocks_;
};

}  // namespace cp
