#include "sim/proof/run/test_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <variant>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

// All whole numbers up to 2^this are values of the type; of integers some room is left for sums on the way.
int exact_bits(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 8;
    case DType::f16:
      return 11;
    case DType::f32:
      return 24;
    case DType::i32:
      return 30;
    case DType::i64:
      return 52;  // comparing happens in float64
  }
  return 0;
}

// Results that are rounded on the way stay so small that neighbours are further apart than the tolerance:
// they have at most kRoundedBits bits in f32 (of 24), and if they are rounded to a narrower type, at least
// kBitsOfRoundedResults bits fewer than that type holds.
constexpr int kRoundedBits = 12, kBitsOfRoundedResults = 2;

std::uint64_t scramble(std::uint64_t x) {
  x *= 0x9e3779b97f4a7c15;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

// Of the random bits x: a number in [-2^bits, 2^bits), in [0, 2^bits), in [0, count).
std::int64_t signed_draw(std::uint64_t x, int bits) { return static_cast<std::int64_t>(x) >> (63 - bits); }
std::int64_t draw(std::uint64_t x, int bits) { return static_cast<std::int64_t>((x >> 1) >> (63 - bits)); }
std::int64_t choose(std::uint64_t x, std::int64_t count) {
  return static_cast<std::int64_t>(((x & 0xffffffff) * static_cast<std::uint64_t>(count)) >> 32);
}

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::abs(std::frexp(value, &exponent)) == 0.5;
}

std::int64_t odd_part(std::int64_t value) {
  return value >> std::countr_zero(static_cast<std::uint64_t>(value));
}

}  // namespace

TestValues::TestValues(const Redistribution& redistribution, std::uint64_t seed, double scale)
    : source_(redistribution.source), offset_(scramble(seed + 1)) {
  const Layout& target = redistribution.target;
  int rounding_axes = 0;
  std::int64_t averaged = 1;
  for (const int axis : partial_axes(source_)) {
    const std::int64_t ranks = source_.mesh.axis_size(axis);
    contributions_ *= ranks;
    if (std::get<Partial>(source_.placements[static_cast<std::size_t>(axis)]).op != ReduceOp::avg) continue;
    averaged *= ranks;
    if (odd_part(ranks) != 1) ++rounding_axes;
  }
  unit_ = averaged;
  for (const int axis : partial_axes(target)) {
    const std::int64_t ranks = target.mesh.axis_size(axis);
    if (redistribution.partial_rule != PartialRule::divide) continue;
    unit_ *= ranks;
    if (odd_part(ranks) != 1) ++rounding_axes;
  }
  reduced_unit_ = unit_ / averaged;
  is_exact_ = rounding_axes == 0;
  const bool rounds = !is_power_of_two(scale);  // a power of two changes the exponent alone

  bits_ = 64;
  std::int64_t most = std::int64_t{1} << 52;
  for (const DType dtype : {source_.dtype, redistribution.travel_dtype, target.dtype}) {
    bits_ = std::min(bits_, exact_bits(dtype));
    if (dtype == DType::f16) most = 65504;
  }
  most = static_cast<std::int64_t>(static_cast<double>(most) / std::max(1.0, std::abs(scale)));
  // Multiples of a power of two are as exact as whole numbers; of other units there are fewer.
  const std::int64_t room = std::min((std::int64_t{1} << bits_) / odd_part(unit_), most / unit_);
  if (room < 1) {
    throw InvalidInput(str("a mean over ", unit_, " ranks has no exact values in ", name(source_.dtype),
                           " -> ", name(redistribution.travel_dtype), " -> ", name(target.dtype),
                           " to check it with; use f32"));
  }
  bits_ = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(room))) - 1;
  if (rounds) bits_ = std::max(0, std::min(bits_, exact_bits(target.dtype) - kBitsOfRoundedResults));
  if (rounding_axes > 0 || rounds) bits_ = std::min(bits_, kRoundedBits);
  common_bits_ = bits_ - 1 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(contributions_ - 1)));
  const double most_reduced = std::ldexp(static_cast<double>(reduced_unit_), bits_);
  tolerance_ = std::abs(scale) * most_reduced * std::ldexp(rounding_axes + (rounds ? 1 : 0), -23);
  // To a 16-bit target, half a unit in the last place; of the result as it is, which is off by as much as
  // said.
  if (rounds && target.dtype != DType::f32) {
    const double half_place = std::ldexp(1.0, -exact_bits(target.dtype));
    tolerance_ += (std::abs(scale) * most_reduced + tolerance_) * half_place;
  }

  switch (reduction(source_).value_or(ReduceOp::sum)) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      rule_ = contributions_ == 1 ? Rule::plain : Rule::sum;
      break;
    case ReduceOp::min:
      rule_ = Rule::min;
      break;
    case ReduceOp::max:
      rule_ = Rule::max;
      break;
    case ReduceOp::product:
      rule_ = Rule::product;
      break;
  }
}

std::int64_t TestValues::contribution_of(Rank rank) const {
  std::int64_t contribution = 0;
  for (const int axis : partial_axes(source_)) {
    contribution = contribution * source_.mesh.axis_size(axis) + source_.mesh.coordinate(rank, axis);
  }
  return contribution;
}

template <class Value>
void TestValues::generate(std::int64_t global, std::span<std::int64_t> values, const Value& value) const {
  const std::uint64_t first = offset_ + static_cast<std::uint64_t>(global);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(scramble(first + i));
}

void TestValues::fill(std::int64_t global, std::int64_t contribution, std::span<std::int64_t> values) const {
  const std::int64_t n = contributions_, unit = unit_;
  const int half = std::max(bits_ - 1, 0);
  switch (rule_) {
    case Rule::plain:
      return generate(global, values, [&](std::uint64_t x) { return unit * signed_draw(x, bits_); });
    case Rule::sum:
      return generate(global, values, [&](std::uint64_t x) {
        const std::uint64_t y = scramble(x);
        const bool chosen = choose(y, n) == contribution;
        return unit * (common(x) + (chosen ? 1 + draw(y, half) : 0));
      });
    case Rule::min:
    case Rule::max: {
      const std::int64_t sign = rule_ == Rule::min ? unit : -unit;
      const auto salt = static_cast<std::uint64_t>(contribution);
      return generate(global, values, [&](std::uint64_t x) {
        const std::uint64_t y = scramble(x);
        const bool chosen = choose(y, n) == contribution;
        return unit * signed_draw(x, half) + sign * (chosen ? -1 - draw(y, 3) : draw(scramble(y + salt), 3));
      });
    }
    case Rule::product:
      return generate(global, values, [&](std::uint64_t x) -> std::int64_t {
        const std::uint64_t y = scramble(x);
        const std::int64_t chosen = choose(y, n);
        if (chosen == contribution) return unit * factor(x, y);
        return n > 1 && (chosen + 1) % n == contribution ? 2 : 1;
      });
  }
}

void TestValues::fill_reduced(std::int64_t global, std::span<std::int64_t> values) const {
  const std::int64_t n = contributions_, unit = reduced_unit_;
  const int half = std::max(bits_ - 1, 0);
  switch (rule_) {
    case Rule::plain:
      return generate(global, values, [&](std::uint64_t x) { return unit * signed_draw(x, bits_); });
    case Rule::sum:
      return generate(global, values,
                      [&](std::uint64_t x) { return unit * (n * common(x) + 1 + draw(scramble(x), half)); });
    case Rule::min:
    case Rule::max: {
      const std::int64_t sign = rule_ == Rule::min ? unit : -unit;
      return generate(global, values, [&](std::uint64_t x) {
        return unit * signed_draw(x, half) - sign * (1 + draw(scramble(x), 3));
      });
    }
    case Rule::product:
      return generate(global, values,
                      [&](std::uint64_t x) { return unit * (n > 1 ? 2 : 1) * factor(x, scramble(x)); });
  }
}

std::int64_t TestValues::common(std::uint64_t x) const {
  return common_bits_ < 0 ? 0 : signed_draw(x, common_bits_);
}

std::int64_t TestValues::factor(std::uint64_t x, std::uint64_t y) const {
  return (y >> 63 != 0 ? 1 : -1) * (1 + draw(x, std::max(bits_ - 2, 0)));
}

}  // namespace cp::sim
