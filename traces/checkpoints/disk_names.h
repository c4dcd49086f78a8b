// How families of models name their tensors on disk, and how these lie there, where that is not as
// shared/transformer/tensor_places.h has them: some rename tensors, others have one matrix for several of
// ours, one below the other, or one tensor for all experts of a layer, whose matrices are transposed. What
// recurrences project, and queries with their gates, are in tensors whose rows have another order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/tensor_places.h"

namespace cp {

// Where a tensor of the model lies: its element (row, column) is element first + row row_step + column
// column_step of the one on disk. Of a vector row_step has no meaning.
struct DiskPlace {
  std::string tensor;
  std::int64_t first = 0, row_step = 0, column_step = 1;
  // Where rows have another order than on disk: stretches of them that lie one behind the other there,
  // ascending, from row 0 on. The place of row `begin` is `first`, column_step is 1, and a vector's row is an
  // element. Empty: all rows are one stretch.
  struct Rows {
    std::int64_t begin = 0, first = 0;
    bool operator==(const Rows&) const = default;
  };
  std::vector<Rows> stretches = {};
  bool operator==(const DiskPlace&) const = default;
};

struct DiskTensor {
  std::string tensor;
  std::vector<std::int64_t> shape;
  bool trained = true;  // and so has states of the optimizer
  std::int64_t numel() const;
  bool operator==(const DiskTensor&) const = default;
};

class DiskNames {
 public:
  // `family` is a config's model_type ("mixtral"); of one that is not known, tensors have the model's names.
  static DiskNames of(std::string_view family, const Transformer& model) {
    return DiskNames(family, tensors_of_model(model), model);
  }
  // Of some of its tensors. Of the model no more is read than what heads and recurrences it has.
  DiskNames(std::string_view family, const std::vector<TensorShape>& shapes, const Transformer& model);

  // The tensors on disk, in the order of the model's; those that are put together stand where their first one
  // does.
  const std::vector<DiskTensor>& tensors() const { return tensors_; }
  // Of a tensor of the model.
  const DiskPlace& place(const std::string& tensor) const;

 private:
  std::vector<DiskTensor> tensors_;
  std::map<std::string, DiskPlace, std::less<>> places_;
};

}  // namespace cp
