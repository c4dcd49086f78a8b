// TestValues: what a tensor holds while a redistribution is tried out.
//
// Each element is a cheap function of its number in the whole tensor and a seed, so that any rank can make
// its own shard and check any other, and no rank needs the whole tensor. All values are whole numbers so
// small that every type on their way and every order of every reduction holds them exactly.
//
// Where the source is partial, one contribution of each element, chosen pseudo-randomly, differs from the
// others, so that a contribution which is lost, taken twice or taken from another element shows in the
// result:
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
  // Throws InvalidInput when an average is over so many ranks that the narrowest type on the way has no exact
  // values for it. `scale`: what the plans multiply the result with.
  TestValues(const Redistribution& redistribution, std::uint64_t seed, double scale = 1);

  // Which contribution to the source's values a rank of the source's mesh holds: 0 .. the number of ranks
  // along the partial axes - 1.
  std::int64_t contribution_of(Rank rank) const;

  // What contribution `contribution` holds of the elements number `global`, global+1, ...
  void fill(std::int64_t global, std::int64_t contribution, std::span<std::int64_t> values) const;

  // What the elements are once all contributions are reduced, without the scale.
  void fill_reduced(std::int64_t global, std::span<std::int64_t> values) const;

  // How far a result may be from scale x fill_reduced(): 0 unless a mean is taken over, or a value divided
  // among, a number of ranks that is no power of two, or the scale is none. Then each such mesh axis may
  // round twice in f32, once for 1/n and once for the product with it; so does the scale, and its product
  // once more in a 16-bit target.
  double tolerance() const { return tolerance_; }

  // Whether results have the same bits in every world: those without a mean or a division that rounds. A
  // scale is one product in f32 and one rounding, on every device.
  bool is_exact() const { return is_exact_; }

 private:
  enum class Rule : std::uint8_t { plain, sum, min, max, product };

  template <class Value>
  void generate(std::int64_t global, std::span<std::int64_t> values, const Value& value) const;

  std::int64_t common(std::uint64_t x) const;                   // g, of an element's random bits
  std::int64_t factor(std::uint64_t x, std::uint64_t y) const;  // h

  Layout source_;
  Rule rule_ = Rule::plain;
  std::uint64_t offset_ = 0;        // of the elements' numbers, from the seed
  std::int64_t contributions_ = 1;  // n
  int bits_ = 0;                    // results lie within 2^bits
  int common_bits_ = -1;            // g lies within 2^common_bits; g = 0 when negative
  std::int64_t unit_ = 1;           // of what the source holds
  std::int64_t reduced_unit_ = 1;   // of what it reduces to
  double tolerance_ = 0;
  bool is_exact_ = true;
};

}  // namespace cp::sim
