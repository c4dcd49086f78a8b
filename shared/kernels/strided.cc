#include "shared/kernels/strided.h"

#include <algorithm>

#include "shared/base/error.h"

namespace cp {
namespace {

// Dimensions innermost first, those of size 1 left out, neighbours that continue one another joined. Never
// empty.
std::vector<Loop> dims_of(const View& view) {
  std::vector<Loop> dims;
  for (std::size_t d = view.shape.size(); d-- > 0;) {
    const std::int64_t size = view.shape[d], stride = view.strides[d];
    if (size == 1) continue;
    if (!dims.empty() && stride == dims.back().step_a * dims.back().size) {
      dims.back().size *= size;
    } else {
      dims.push_back({size, stride, 0});
    }
  }
  if (dims.empty()) dims.push_back({1, 1, 0});
  return dims;
}

}  // namespace

std::optional<std::vector<Loop>> common_loops(const View& a, const View& b) {
  CP_INVARIANT(a.numel() == b.numel(), a.numel(), " elements against ", b.numel());
  std::vector<Loop> dims_a = dims_of(a), dims_b = dims_of(b), loops;
  std::size_t i = 0, j = 0;
  while (i < dims_a.size() && j < dims_b.size()) {
    Loop &in_a = dims_a[i], &in_b = dims_b[j];
    const std::int64_t size = std::min(in_a.size, in_b.size);
    if (in_a.size % size != 0 || in_b.size % size != 0) return std::nullopt;
    const Loop loop{size, in_a.step_a, in_b.step_a};
    const bool continues = !loops.empty() && loop.step_a == loops.back().step_a * loops.back().size &&
                           loop.step_b == loops.back().step_b * loops.back().size;
    if (continues) {
      loops.back().size *= size;
    } else {
      loops.push_back(loop);
    }
    for (auto [dim, next] : {std::pair{&in_a, &i}, std::pair{&in_b, &j}}) {
      dim->size /= size;
      dim->step_a *= size;
      if (dim->size == 1) ++*next;
    }
  }
  std::reverse(loops.begin(), loops.end());
  return loops;
}

Cursor::Cursor(const View& view) : dims_(dims_of(view)) {
  std::reverse(dims_.begin(), dims_.end());
  index_.assign(dims_.size(), 0);
}

void Cursor::advance(std::int64_t elements) {
  offset_ += elements * dims_.back().step_a;
  index_.back() += elements;
  for (std::size_t d = dims_.size(); d-- > 0 && index_[d] == dims_[d].size;) {
    offset_ -= dims_[d].step_a * dims_[d].size;
    index_[d] = 0;
    if (d == 0) break;
    offset_ += dims_[d - 1].step_a;
    ++index_[d - 1];
  }
}

}  // namespace cp
