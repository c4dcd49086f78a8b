// How families of models name their tensors on disk, where that is not how shared/transformer/tensor_places.h
// names them: some rename tensors, others have one matrix for several of ours, one below the other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/tensor_places.h"

namespace cp {

// Where a tensor of the model lies: from element `first` on of the one on disk, row by row, with no gaps.
struct DiskPlace {
  std::string tensor;
  std::int64_t first = 0;
  bool operator==(const DiskPlace&) const = default;
};

class DiskNames {
 public:
  // `family` is a config's model_type ("mixtral"); of one that is not known, tensors have the model's names.
  // `shapes` are those of tensors_of_model().
  DiskNames(std::string_view family, const std::vector<TensorShape>& shapes);

  // The tensors on disk, in the order of the model's; those that are put together stand where their first one
  // does.
  const std::vector<TensorShape>& tensors() const { return tensors_; }
  // Of a tensor of the model.
  const DiskPlace& place(const std::string& tensor) const;

 private:
  std::vector<TensorShape> tensors_;
  std::map<std::string, DiskPlace, std::less<>> places_;
};

}  // namespace cp
