// How the values of each dtype are stored, and in which type arithmetic on them happens. The functions are
// constexpr, so that GPU kernels use the same ones.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <utility>

#include "shared/base/dtype.h"
#include "shared/base/error.h"
#include "shared/kernels/float16.h"

namespace cp {

struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

template <class T>
concept SixteenBit = std::same_as<T, F16> || std::same_as<T, BF16>;

// The type in which arithmetic on a stored T happens: f32 for the 16-bit types, else T itself.
template <class T>
using ValueOf = std::conditional_t<SixteenBit<T>, float, T>;

constexpr float load(F16 element) { return f16_to_f32(element.bits); }
constexpr float load(BF16 element) { return bf16_to_f32(element.bits); }
template <class T>
requires std::is_arithmetic_v<T>
constexpr T load(T element) { return element; }

// Converts a value to a stored element. Rounds once, to nearest even, also to integers. A value beyond the
// limits of an integer becomes the nearest limit, and a NaN becomes 0. Between integers the low bits are
// kept.
template <class T, class Value>
constexpr T convert(Value value) {
  if constexpr (SixteenBit<T>) {
    float narrow = 0;
    if constexpr (std::same_as<Value, float>) {
      narrow = value;
    } else if constexpr (std::integral<Value>) {
      narrow = round_to_odd(static_cast<std::int64_t>(value));
    } else {
      narrow = round_to_odd(value);
    }
    if constexpr (std::same_as<T, F16>) {
      return {f32_to_f16(narrow)};
    } else {
      return {f32_to_bf16(narrow)};
    }
  } else if constexpr (std::integral<T> && std::floating_point<Value>) {
    // The largest integer + 1: a power of two, so that it is exact.
    constexpr Value kEnd = static_cast<Value>(std::uint64_t{1} << (8 * sizeof(T) - 1));
    const Value rounded = std::nearbyint(value);
    if (rounded != rounded) return 0;
    if (rounded >= kEnd) return std::numeric_limits<T>::max();
    return rounded < -kEnd ? std::numeric_limits<T>::min() : static_cast<T>(rounded);
  } else {
    return static_cast<T>(value);
  }
}

// Integers wrap: signed overflow is undefined, so the arithmetic is unsigned.
template <class T>
constexpr T plus(T a, T b) {
  if constexpr (std::integral<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}
template <class T>
constexpr T times(T a, T b) {
  if constexpr (std::integral<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
  } else {
    return a * b;
  }
}
// A NaN on either side is the result.
template <class T>
constexpr T least(T a, T b) {
  return b < a || b != b ? b : a;
}
template <class T>
constexpr T greatest(T a, T b) {
  return b > a || b != b ? b : a;
}

// Calls f(std::type_identity<T>{}) with the stored type T of the dtype.
template <class F>
decltype(auto) with_element_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return std::forward<F>(f)(std::type_identity<float>{});
    case DType::f16:
      return std::forward<F>(f)(std::type_identity<F16>{});
    case DType::bf16:
      return std::forward<F>(f)(std::type_identity<BF16>{});
    case DType::i32:
      return std::forward<F>(f)(std::type_identity<std::int32_t>{});
    case DType::i64:
      return std::forward<F>(f)(std::type_identity<std::int64_t>{});
  }
  CP_INVARIANT(false, "dtype ", static_cast<int>(dtype));
  std::abort();
}

// The same for the floating types alone.
template <class F>
decltype(auto) with_floating_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return std::forward<F>(f)(std::type_identity<float>{});
    case DType::f16:
      return std::forward<F>(f)(std::type_identity<F16>{});
    case DType::bf16:
      return std::forward<F>(f)(std::type_identity<BF16>{});
    case DType::i32:
    case DType::i64:
      break;
  }
  CP_INVARIANT(false, name(dtype), " where only floating types are defined");
  std::abort();
}

}  // namespace cp
