#include "shared/redistribute/piece_views.h"

namespace cp::detail {
namespace {

Shape dense_strides(const std::vector<std::int64_t>& sizes) {
  Shape strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= sizes[dim];
  }
  return strides;
}

// Appends the dimensions that one overlap spans: its runs, and the elements of a run.
void extend(View& view, const Overlap& overlap, std::int64_t start, std::int64_t run_stride,
            std::int64_t element_stride) {
  view.offset += start * element_stride;
  if (overlap.count > 1) {
    view.shape.push_back(overlap.count);
    view.strides.push_back(run_stride * element_stride);
  }
  if (overlap.run > 1 || overlap.count == 1) {
    view.shape.push_back(overlap.run);
    view.strides.push_back(element_stride);
  }
}

}  // namespace

PieceViews::PieceViews(const Box& from, const Box& to) {
  std::vector<std::int64_t> from_sizes, to_sizes, piece_sizes;
  for (std::size_t dim = 0; dim < from.size(); ++dim) {
    from_sizes.push_back(size(from[dim]));
    to_sizes.push_back(size(to[dim]));
    overlaps_.push_back(intersect(from[dim], to[dim]));
    std::int64_t shared = 0;
    for (const Overlap& overlap : overlaps_.back()) shared += overlap.run * overlap.count;
    piece_sizes.push_back(shared);
    numel_ *= shared;
  }
  from_strides_ = dense_strides(from_sizes);
  to_strides_ = dense_strides(to_sizes);
  dense_strides_ = dense_strides(piece_sizes);
}

std::vector<PieceViews::Block> PieceViews::blocks(BufferId from, BufferId to, BufferId dense,
                                                  std::int64_t dense_offset) const {
  std::vector<Block> blocks;
  if (numel_ == 0) return blocks;
  blocks.push_back({{from, 0, {}, {}, {}}, {to, 0, {}, {}, {}}, {dense, dense_offset, {}, {}, {}}});
  for (std::size_t dim = 0; dim < overlaps_.size(); ++dim) {
    std::vector<Block> extended;
    extended.reserve(blocks.size() * overlaps_[dim].size());
    for (const Block& block : blocks) {
      std::int64_t in_dense = 0;
      for (const Overlap& overlap : overlaps_[dim]) {
        Block next = block;
        extend(next.from, overlap, overlap.in_a, overlap.stride_a, from_strides_[dim]);
        extend(next.to, overlap, overlap.in_b, overlap.stride_b, to_strides_[dim]);
        extend(next.dense, overlap, in_dense, overlap.run, dense_strides_[dim]);
        in_dense += overlap.run * overlap.count;
        extended.push_back(std::move(next));
      }
    }
    blocks = std::move(extended);
  }
  return blocks;
}

std::int64_t PieceViews::from_start() const {
  std::int64_t start = 0;
  for (std::size_t dim = 0; dim < overlaps_.size(); ++dim)
    start += overlaps_[dim].front().in_a * from_strides_[dim];
  return start;
}

std::int64_t PieceViews::to_start() const {
  std::int64_t start = 0;
  for (std::size_t dim = 0; dim < overlaps_.size(); ++dim)
    start += overlaps_[dim].front().in_b * to_strides_[dim];
  return start;
}

}  // namespace cp::detail
