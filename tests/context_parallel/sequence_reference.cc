#include "tests/context_parallel/sequence_reference.h"

#include <cstddef>
#include <ostream>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "tests/support/shard_data.h"

namespace cp::testing {
namespace {

Tensor narrow(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t length) {
  Tensor part{tensor.shape, {}};
  part.shape[idx(dim)] = length;
  const std::int64_t size = tensor.shape[idx(dim)];
  const std::int64_t inner = numel(Shape(tensor.shape.begin() + dim + 1, tensor.shape.end()));
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) / inner % size;
    if (begin <= at && at < begin + length) part.values.push_back(tensor.values[i]);
  }
  return part;
}

}  // namespace

void PrintTo(const Tensor& tensor, std::ostream* out) {
  *out << join(tensor.shape, "x") << " {" << join(tensor.values, " ") << "}";
}

Tensor example(const Shape& shape, std::uint64_t seed) {
  Tensor tensor{shape, {}};
  for (std::int64_t i = 0; i < numel(shape); ++i) tensor.values.push_back(small_integer(seed, i, 0, 1 << 20));
  return tensor;
}

Tensor times(Tensor tensor, double factor) {
  for (double& value : tensor.values) value *= factor;
  return tensor;
}

Tensor concatenated(const Tensors& parts, int dim) {
  Tensor whole{parts.front().shape, {}};
  whole.shape[idx(dim)] = 0;
  for (const Tensor& part : parts) whole.shape[idx(dim)] += part.shape[idx(dim)];
  const std::int64_t outer = numel(Shape(whole.shape.begin(), whole.shape.begin() + dim));
  for (std::int64_t row = 0; row < outer; ++row) {
    for (const Tensor& part : parts) {
      const std::int64_t block = static_cast<std::int64_t>(part.values.size()) / outer;
      for (std::int64_t i = 0; i < block; ++i) whole.values.push_back(part.values[idx(row * block + i)]);
    }
  }
  return whole;
}

Sizes split_sizes(std::int64_t length, int n) {
  Sizes sizes;
  for (int i = 0; i < n; ++i) sizes.push_back(length / n + (i < length % n ? 1 : 0));
  return sizes;
}

Tensors split(const Tensor& tensor, const Sizes& sizes, int dim) {
  Tensors parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(narrow(tensor, dim, begin, size));
    begin += size;
  }
  return parts;
}

Tensors all_to_all_of(const Tensors& inputs, int scatter_dim, int gather_dim) {
  const int n = static_cast<int>(inputs.size());
  std::vector<Tensors> received(inputs.size());
  for (const Tensor& input : inputs) {
    const Tensors sent = split(input, split_sizes(input.shape[idx(scatter_dim)], n), scatter_dim);
    for (std::size_t to = 0; to < sent.size(); ++to) received[to].push_back(sent[to]);
  }
  Tensors outputs;
  for (const Tensors& parts : received) outputs.push_back(concatenated(parts, gather_dim));
  return outputs;
}

Tensors ring_split(Ring kind, const Tensor& tensor, int n, int dim) {
  const std::int64_t length = tensor.shape[idx(dim)];
  if (kind == Ring::balanced) return split(tensor, split_sizes(length, n), dim);
  const Tensors chunks = split(tensor, split_sizes(length, 2 * n), dim);
  Tensors parts;
  for (int r = 0; r < n; ++r)
    parts.push_back(concatenated({chunks[idx(r)], chunks[idx(2 * n - 1 - r)]}, dim));
  return parts;
}

Tensor ring_gather(Ring kind, const Tensors& parts, std::int64_t length, int dim) {
  if (kind == Ring::balanced) return concatenated(parts, dim);
  const int n = static_cast<int>(parts.size());
  const Sizes sizes = split_sizes(length, 2 * n);
  Tensors chunks(idx(2 * n));
  for (int r = 0; r < n; ++r) {
    const Tensors two = split(parts[idx(r)], {sizes[idx(r)], sizes[idx(2 * n - 1 - r)]}, dim);
    chunks[idx(r)] = two[0];
    chunks[idx(2 * n - 1 - r)] = two[1];
  }
  return concatenated(chunks, dim);
}

Tensors packed_split(Ring kind, const Tensor& tensor, const Sizes& lengths, int n, int dim) {
  std::vector<Tensors> by_rank(idx(n));
  for (const Tensor& document : split(tensor, lengths, dim)) {
    const Tensors parts = ring_split(kind, document, n, dim);
    for (std::size_t r = 0; r < parts.size(); ++r) by_rank[r].push_back(parts[r]);
  }
  Tensors result;
  for (const Tensors& parts : by_rank) result.push_back(concatenated(parts, dim));
  return result;
}

Tensor packed_gather(Ring kind, const Tensors& parts, const Sizes& lengths, int dim) {
  Tensors left = parts, documents;
  for (const std::int64_t length : lengths) {
    const Tensor model{{length}, std::vector<double>(idx(length))};
    const Tensors model_parts = ring_split(kind, model, static_cast<int>(parts.size()), 0);
    Tensors of_document;
    for (std::size_t r = 0; r < left.size(); ++r) {
      const std::int64_t take = model_parts[r].shape[0];
      const Tensors two = split(left[r], {take, left[r].shape[idx(dim)] - take}, dim);
      of_document.push_back(two[0]);
      left[r] = two[1];
    }
    documents.push_back(ring_gather(kind, of_document, length, dim));
  }
  return concatenated(documents, dim);
}

Tensor packed_gather(const Tensors& parts, const SizeMatrix& all_split_sizes, int dim) {
  std::vector<Tensors> chunks;  // by rank, by sequence
  for (std::size_t r = 0; r < parts.size(); ++r) chunks.push_back(split(parts[r], all_split_sizes[r], dim));
  Tensors pieces;
  for (std::size_t s = 0; s < all_split_sizes[0].size(); ++s) {
    for (const Tensors& of_rank : chunks) pieces.push_back(of_rank[s]);
  }
  if (pieces.empty()) return parts.front();
  return concatenated(pieces, dim);
}

Tensors packed_split(const Tensor& tensor, const SizeMatrix& all_split_sizes, int dim) {
  Sizes in_order;  // of the whole tensor's pieces
  for (std::size_t s = 0; s < all_split_sizes[0].size(); ++s) {
    for (const Sizes& sizes : all_split_sizes) in_order.push_back(sizes[s]);
  }
  const Tensors pieces = split(tensor, in_order, dim);
  Tensors parts;
  for (std::size_t r = 0; r < all_split_sizes.size(); ++r) {
    Tensors own;
    for (std::size_t i = r; i < pieces.size(); i += all_split_sizes.size()) own.push_back(pieces[i]);
    parts.push_back(own.empty() ? tensor : concatenated(own, dim));
  }
  return parts;
}

}  // namespace cp::testing
