// TestValues says what a tensor holds while a redistribution is tried out.
//
// Each element is a cheap function of its number in the whole tensor and a seed. So any rank can make its own
// shard and check any other, and no rank needs the whole tensor. All values are whole numbers so small that
// every type on their way and every order of every reduction holds them exactly.
//
// If the source is partial, one contribution of each element, chosen pseudo-randomly, differs from the
// others. So a contribution that is lost, taken twice or taken from another element shows in the result:
//
//   sum, avg    everybody gives g, the chosen one g + k         result n g + k
//   min, max    the chosen one gives less (more) than all       result that one
//   product     the chosen one gives h, the next 2, others 1    result 2 h
#pragma once

#include <cstdint>
#include <span>

#include "shared/placement/layout.h"
#include "shared/redistribute/redistribution.h"

namespace cp::sim {

class TestValues {
 public:
  // `scale` is what the plans multiply the result with. Throws InvalidInput if an average is over so many
  // ranks that the narrowest type on the way has no exact values for it.
  TestValues(const Redistribution& redistribution, std::uint64_t seed, double scale = 1);

  // Which contribution to the source's values a rank of the source's mesh holds, from 0 to the number of
  // ranks along the partial axes - 1.
  std::int64_t contribution_of(Rank rank) const;

  // Writes what contribution `contribution` holds of the elements number `global`, global+1, ...
  void fill(std::int64_t global, std::int64_t contribution, std::span<std::int64_t> values) const;

  // Writes what these elements are once all contributions are reduced, without the scale.
  void fill_reduced(std::int64_t global, std::span<std::int64_t> values) const;

  // How far a result may be from scale x fill_reduced(). It is 0 if there is nothing that rounds: no mean
  // over, or division among, a number of ranks that is no power of two, and no scale that is none. Otherwise
  // each such mesh axis may round twice in f32, once for 1/n and once for the product with it. So may the
  // scale; and its product may round once more in a 16-bit target.
  double tolerance() const { return tolerance_; }

  // Whether results have the same bits in every world: if there is no mean or division that rounds. A scale
  // does not matter, since it is one product in f32 and one rounding on every device.
  bool is_exact() const { return is_exact_; }

 private:
  enum class Rule : std::uint8_t { plain, sum, min, max, product };

  template <class Value>
  void generate(std::int64_t global, std::span<std::int64_t> values, const Value& value) const;

  std::int64_t common(std::uint64_t x) const;                   // g, of an element's random bits
  std::int64_t factor(std::uint64_t x, std::uint64_t y) const;  // h

  Layout source_;
  Rule rule_ = Rule::plain;
  std::uint64_t offset_ = 0;        // added to the elements' numbers, from the seed
  std::int64_t contributions_ = 1;  // n
  int bits_ = 0;                    // results lie within 2^bits
  int common_bits_ = -1;            // g lies within 2^common_bits; g = 0 if this is negative
  std::int64_t unit_ = 1;           // what the source holds are multiples of it
  std::int64_t reduced_unit_ = 1;   // what it reduces to are multiples of this
  double tolerance_ = 0;
  bool is_exact_ = true;
};

}  // namespace cp::sim
