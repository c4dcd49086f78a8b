#include "shared/kernels/attention_rows.h"

#include <algorithm>
#include <limits>

#include "shared/kernels/elements.h"

namespace cp {
namespace {

// Calls f(element, value) for each element of the head, `value` being its place in the dense rows.
template <class T, class Values, class F>
void for_each_element(const View& view, T* head_begin, Values& values, F&& f) {
  const std::int64_t seq_len = view.shape[1], head_dim = view.shape[3];
  auto* value = values.data();
  for (std::int64_t s = 0; s < seq_len; ++s) {
    T* row = head_begin + s * view.strides[1];
    for (std::int64_t d = 0; d < head_dim; ++d) f(row[d * view.strides[3]], *value++);
  }
}

std::int64_t head_offset(const View& view, std::int64_t batch, std::int64_t head) {
  return batch * view.strides[0] + head * view.strides[2];
}

}  // namespace

Rows::Rows(std::int64_t seq_len, std::int64_t head_dim)
    : seq_len_(seq_len), head_dim_(head_dim), values_(static_cast<std::size_t>(seq_len * head_dim)) {}

Rows Rows::load(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
                std::int64_t head) {
  Rows rows(view.shape[1], view.shape[3]);
  with_floating_type(memory.dtype(view), [&]<class T>(std::type_identity<T>) {
    const T* begin = reinterpret_cast<const T*>(memory.at(view, iteration)) + head_offset(view, batch, head);
    for_each_element(view, begin, rows.values_,
                     [](const T& element, float& value) { value = cp::load(element); });
  });
  return rows;
}

void Rows::store(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
                 std::int64_t head, bool accumulate) const {
  with_floating_type(memory.dtype(view), [&]<class T>(std::type_identity<T>) {
    T* begin = reinterpret_cast<T*>(memory.at(view, iteration)) + head_offset(view, batch, head);
    for_each_element(view, begin, values_, [accumulate](T& element, const float& value) {
      element = convert<T>(accumulate ? cp::load(element) + value : value);
    });
  });
}

float& row_statistic(const View& view, const HostMemory& memory, std::int64_t iteration,
                     const RowIndex& index) {
  return reinterpret_cast<float*>(memory.at(
      view,
      iteration))[index.batch * view.strides[0] + index.head * view.strides[1] + index.seq * view.strides[2]];
}

void keys_of(std::span<const MaskSlice> slices, std::int64_t q, std::vector<KeyRange>& ranges) {
  ranges.clear();
  for (const MaskSlice& slice : slices) {
    const std::int64_t i = q - slice.q_begin;
    if (i < 0 || i >= slice.q_len) continue;
    std::int64_t begin = 0, end = slice.k_len;
    if (slice.kind != MaskSlice::Kind::full) end = std::min(end, i + slice.diagonal + 1);
    if (slice.kind == MaskSlice::Kind::window) begin = std::max(begin, i + slice.diagonal - slice.window + 1);
    if (begin < end) ranges.push_back({slice.k_begin + begin, slice.k_begin + end});
  }
}

float dot(std::span<const float> a, std::span<const float> b) {
  float sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

void add_scaled(float factor, std::span<const float> in, std::span<float> out) {
  for (std::size_t d = 0; d < out.size(); ++d) out[d] += factor * in[d];
}

}  // namespace cp
