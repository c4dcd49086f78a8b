// AttentionMemory: the tensors of one attention in any layout and dtype, for tests of its kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/support/attention_definition.h"

namespace cp::testing {

// Order of the dimensions in memory, slowest first; `gaps` is bshd with every second element alone in use.
enum class Order { bshd, bnsd, sbhd, gaps };

class AttentionMemory {
 public:
  explicit AttentionMemory(const AttentionInputs& inputs, DType dtype = DType::f32, Order order = Order::bshd)
      : shape(inputs.shape),
        q(tensor(dtype, order, shape.q_len, shape.q_heads, shape.head_dim, inputs.q)),
        k(tensor(dtype, order, shape.kv_len, shape.kv_heads, shape.head_dim, inputs.k)),
        v(tensor(dtype, order, shape.kv_len, shape.kv_heads, shape.v_head_dim, inputs.v)),
        out(new_out(DType::f32, order)),
        lse(new_rows()) {}

  // A tensor [batch, seq, heads, dim] that holds the values, given row-major.
  View tensor(DType dtype, Order order, std::int64_t seq, std::int64_t heads, std::int64_t dim,
              const std::vector<double>& values) {
    const std::int64_t batch = shape.batch, gap = order == Order::gaps ? 2 : 1;
    View view{0, 0, {batch, seq, heads, dim}, {}, {}};
    switch (order) {
      case Order::bshd:
      case Order::gaps:
        view.strides = {gap * seq * heads * dim, gap * heads * dim, gap * dim, gap};
        break;
      case Order::bnsd:
        view.strides = {seq * heads * dim, dim, seq * dim, 1};
        break;
      case Order::sbhd:
        view.strides = {heads * dim, batch * heads * dim, dim, 1};
        break;
    }
    std::vector<double> placed(static_cast<std::size_t>(gap * view.numel()), kUnused);
    std::size_t next = 0;
    for_each_offset(view, [&](std::size_t offset) { placed[offset] = values.at(next++); });
    view.buffer = memory.add(dtype, placed);
    return view;
  }
  View like(const View& view, double value, DType dtype = DType::f32, Order order = Order::bshd) {
    return tensor(dtype, order, view.shape[1], view.shape[2], view.shape[3],
                  std::vector<double>(static_cast<std::size_t>(view.numel()), value));
  }
  View holding(const View& view, const std::vector<double>& values, DType dtype = DType::f32,
               Order order = Order::bshd) {
    return tensor(dtype, order, view.shape[1], view.shape[2], view.shape[3], values);
  }
  View new_out(DType dtype = DType::f32, Order order = Order::bshd) {
    return tensor(dtype, order, shape.q_len, shape.q_heads, shape.v_head_dim,
                  std::vector<double>(static_cast<std::size_t>(shape.out_numel()), kUnused));
  }
  // [batch, heads, seq] in f32.
  View rows(const std::vector<double>& values) {
    return dense_view(memory.add(DType::f32, values), 0, {shape.batch, shape.q_heads, shape.q_len});
  }
  View new_rows() { return rows(std::vector<double>(static_cast<std::size_t>(shape.lse_numel()), kUnused)); }

  // The elements of a view, row-major.
  std::vector<double> values(const View& view) const {
    const std::vector<double> buffer = memory.values(view.buffer);
    std::vector<double> values;
    for_each_offset(view, [&](std::size_t offset) { values.push_back(buffer.at(offset)); });
    return values;
  }

  static constexpr double kUnused = 96;  // exact in every dtype

  KernelMemory memory;
  AttentionShape shape;
  View q, k, v, out, lse;

 private:
  template <class F>
  static void for_each_offset(const View& view, F&& f) {
    std::vector<std::int64_t> index(view.shape.size());
    for (std::int64_t n = 0; n < view.numel(); ++n) {
      std::int64_t rest = n, offset = view.offset;
      for (std::size_t dim = view.shape.size(); dim-- > 0; rest /= view.shape[dim]) {
        offset += rest % view.shape[dim] * view.strides[dim];
      }
      f(static_cast<std::size_t>(offset));
    }
  }
};

// Each value lies within its tolerance of the expected one; infinities are equal.
inline void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                        const std::function<double(double)>& tolerance, const std::string& what = "") {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(actual[i], expected[i]) << what << "[" << i << "]";
    } else {
      ASSERT_NEAR(actual[i], expected[i], tolerance(expected[i])) << what << "[" << i << "]";
    }
  }
}
inline void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                        double tolerance, const std::string& what = "") {
  expect_near(
      actual, expected, [tolerance](double) { return tolerance; }, what);
}

}  // namespace cp::testing
