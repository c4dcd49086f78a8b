// The two 16-bit floating-point formats: IEEE binary16 (f16) and bfloat16 (bf16), converted to and from f32.
//
// All conversions to fewer bits round once, to nearest, ties to even. Infinities, signed zeros and denormals
// are kept; a NaN stays a NaN and becomes quiet. The functions have no branches, so that loops over them
// vectorise, and are constexpr, so that compilers of other processors take them too.
#pragma once

#include <bit>
#include <cstdint>

namespace cp {

constexpr float f16_to_f32(std::uint16_t bits) {
  constexpr std::uint32_t kExponentMask = 0x7c00u << 13;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
  const std::uint32_t exponent = magnitude & kExponentMask;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t normal = magnitude + ((127u - 15u) << 23);
  const std::uint32_t special = magnitude | (0xffu << 23);
  // 2^-14 * 1.m minus 2^-14 leaves exactly the denormal 2^-14 * 0.m.
  const float denormal =
      std::bit_cast<float>(magnitude + (113u << 23)) - std::bit_cast<float>(std::uint32_t{113u << 23});
  const std::uint32_t small = exponent == 0 ? std::bit_cast<std::uint32_t>(denormal) : normal;
  return std::bit_cast<float>((exponent == kExponentMask ? special : small) | sign);
}

constexpr std::uint16_t f32_to_f16(float value) {
  constexpr std::uint32_t kInfinity = 0xffu << 23;
  // 2^16. A value from 65520 up to it rounds up to infinity by the carry.
  constexpr std::uint32_t kFirstOverflow = (127u + 16u) << 23;
  constexpr std::uint32_t kFirstNormal = 113u << 23;  // 2^-14
  // 0.5. Its last bit weighs 2^-24, as the last bit of an f16 denormal does, so that adding it rounds there.
  constexpr std::uint32_t kDenormalShift = 126u << 23;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t special = magnitude > kInfinity ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
  const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kDenormalShift);
  const std::uint32_t denormal = std::bit_cast<std::uint32_t>(shifted) - kDenormalShift;
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  const std::uint32_t finite = magnitude < kFirstNormal ? denormal : normal;
  return static_cast<std::uint16_t>((magnitude >= kFirstOverflow ? special : finite) | sign);
}

constexpr float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const std::uint32_t quiet_nan = bits | 0x400000u;
  return static_cast<std::uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded) >> 16);
}

// The f32 that lies at or next to the value and has an odd last bit unless it is exact. Rounding it once
// more, to 16 bits, gives what rounding the value itself would have given (Boldo and Melquiond, "Emulation of
// FMA and correctly rounded sums", 2008).
constexpr float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  const bool inexact = back != value && value == value && (bits & 0x7fffffffu) != 0x7f800000u;
  if (!inexact || (bits & 1u) != 0) return nearest;
  if (nearest == 0) return std::bit_cast<float>(value < 0 ? 0x80000001u : 1u);
  const bool away_from_zero = (value > back) == (value > 0);
  return std::bit_cast<float>(away_from_zero ? bits + 1 : bits - 1);
}

constexpr float round_to_odd(std::int64_t value) {
  constexpr int kPrecision = 24;
  const std::uint64_t magnitude =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  const int dropped = static_cast<int>(std::bit_width(magnitude)) - kPrecision;
  if (dropped <= 0) return static_cast<float>(value);
  const std::uint64_t kept = (magnitude >> dropped) << dropped;
  const std::uint64_t odd = kept == magnitude ? kept : kept | (std::uint64_t{1} << dropped);
  return value < 0 ? -static_cast<float>(odd) : static_cast<float>(odd);
}

}  // namespace cp
