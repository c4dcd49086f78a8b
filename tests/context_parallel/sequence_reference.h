// What MindSpeed's functions do to tensors, on plain lists: one tensor for each rank of a group, no layouts,
// no index sets. The brute force for sequence sharding.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "shared/base/types.h"

namespace cp::testing {

using Sizes = std::vector<std::int64_t>;

struct Tensor {
  Shape shape;
  std::vector<double> values;  // dense, row-major
  bool operator==(const Tensor&) const = default;
};
using Tensors = std::vector<Tensor>;  // by index in a group, or by position in a mesh
void PrintTo(const Tensor& tensor, std::ostream* out);

// Integers that differ between elements and between seeds.
Tensor example(const Shape& shape, std::uint64_t seed);
Tensor times(Tensor tensor, double factor);
Tensor concatenated(const Tensors& parts, int dim);

// The remainder goes to the first ranks, one each.
Sizes split_sizes(std::int64_t length, int n);
Tensors split(const Tensor& tensor, const Sizes& sizes, int dim);

// Everybody splits scatter_dim and joins what it gets along gather_dim.
Tensors all_to_all_of(const Tensors& inputs, int scatter_dim, int gather_dim);

// How a ring splits a sequence. Head-tail: rank r takes chunks r and 2n-1-r of 2n; of lengths that 2n does
// not divide, the first chunks are one longer.
enum class Ring { balanced, head_tail };
Tensors ring_split(Ring kind, const Tensor& tensor, int n, int dim);
Tensor ring_gather(Ring kind, const Tensors& parts, std::int64_t length, int dim);

// Each document on its own; a rank's parts lie one behind the other.
Tensors packed_split(Ring kind, const Tensor& tensor, const Sizes& lengths, int n, int dim);
Tensor packed_gather(Ring kind, const Tensors& parts, const Sizes& lengths, int dim);

// all_split_sizes[rank][sequence]: what a rank holds of each sequence, one behind the other. Gathering joins
// the ranks' pieces of the first sequence, then those of the second, and so on; splitting is the gradient's
// way back.
using SizeMatrix = std::vector<Sizes>;
Tensor packed_gather(const Tensors& parts, const SizeMatrix& all_split_sizes, int dim);
Tensors packed_split(const Tensor& tensor, const SizeMatrix& all_split_sizes, int dim);

}  // namespace cp::testing
