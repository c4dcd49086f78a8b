// How families of models name their tensors on disk, and how these lie there, where that is not as
// shared/transformer/tensor_places.h has them: some rename tensors, others have one matrix for several of
// ours, one below the other, or one tensor for all experts of a layer, whose matrices are transposed.
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
  // `shapes` are those of tensors_of_model().
  DiskNames(std::string_view family, const std::vector<TensorShape>& shapes);

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
