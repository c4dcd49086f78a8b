// What tests of row kernels hold results to: definitions in f64, and central differences of these.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "tests/kernels/kernel_memory.h"

namespace cp::testing {

using Values = std::vector<double>;
using Function = std::function<Values(const Values&)>;

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType kFloating[] = {DType::f32, DType::bf16, DType::f16};

// Half of the distance between neighbouring numbers near 1.
inline double unit(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}

// Values of about 1 that the dtype has exactly.
inline Values any_values(std::int64_t count, DType dtype = DType::f32, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Values values(idx(count));
  for (double& value : values) value = normal(random);
  return decode(dtype, encode(dtype, values));
}

// Of a result that is rounded once, from f32 arithmetic: its rounding, and some roundings of its terms, which
// are not much larger than 1.
inline void expect_near(const Values& got, const Values& expected, DType dtype, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double bound =
        unit(dtype) * std::abs(expected[i]) + 64 * unit(DType::f32) * (1 + std::abs(expected[i]));
    ASSERT_NEAR(got[i], expected[i], bound) << what << " in " << name(dtype) << ", element " << i;
  }
}

// The gradient of sum(weights * f(x)), by central differences.
inline Values differences(const Function& f, const Values& x, const Values& weights) {
  constexpr double kStep = 1e-5;
  Values gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    Values up = x, down = x;
    up[i] += kStep, down[i] -= kStep;
    const Values above = f(up), below = f(down);
    for (std::size_t j = 0; j < weights.size(); ++j)
      gradient[i] += weights[j] * (above[j] - below[j]) / (2 * kStep);
  }
  return gradient;
}
// Central differences have an error of about 1e-10, and rounded arguments one of 1e-11 / 1e-5.
inline void expect_gradient(const Values& got, const Values& expected, DType dtype, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], (unit(dtype) + 2e-5) * (1 + std::abs(expected[i])))
        << what << " in " << name(dtype) << ", element " << i;
}

inline Values part(const Values& all, std::size_t first, std::size_t count) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first),
          all.begin() + static_cast<std::ptrdiff_t>(first + count)};
}
inline Values joined(const std::vector<Values>& parts) {
  Values all;
  for (const Values& each : parts) all.insert(all.end(), each.begin(), each.end());
  return all;
}
inline View matrix(BufferId buffer, std::int64_t rows, std::int64_t columns) {
  return dense_view(buffer, 0, {rows, columns});
}
inline Values nothing(std::int64_t count) { return Values(idx(count), kNan); }

}  // namespace cp::testing
