// The source and target shards of one rank of a redistribution, on whatever device it runs: made from the
// elements' numbers alone (TestValues), and compared with what the index sets say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/plan/device.h"
#include "shared/redistribute/redistribution.h"
#include "sim/proof/run/test_values.h"

namespace cp::sim {

struct RedistributeBuffers {
  std::unique_ptr<std::byte[]> source, target;
  std::int64_t source_bytes = 0, target_bytes = 0;

  Bindings bindings() const;
};

// Elements of a target that are not what they should be.
struct RedistributeMismatch {
  Rank rank = 0;
  std::int64_t count = 0;
  std::int64_t global = -1, local = -1;  // of the first one
  double found = 0, expected = 0;
};

// For any thread.
class RedistributeShards {
 public:
  // The redistribution must outlive this. `scale`: what its plans multiply the result with.
  RedistributeShards(const Redistribution& redistribution, std::uint64_t seed, double scale = 1);

  // The rank's shards: its source filled, its target with what is no number that anybody expects.
  RedistributeBuffers make(Rank rank) const;

  // The ranks that hold contributions to the same elements of the target, whose shards lie alike; the rank
  // alone where it is not partial.
  std::vector<Rank> partners_of(Rank rank) const;
  // Compares what the targets of all partners add up to, in their order. Nothing: all elements are right.
  std::optional<RedistributeMismatch> compare(Rank first_partner,
                                              std::span<const RedistributeBuffers* const> partners) const;
  // "3 elements on 2 ranks are wrong; the first one, ..."; of one mismatch at least.
  std::string explain(std::span<const RedistributeMismatch> mismatches) const;

  // Of the target, where its bits are the same in every world.
  std::optional<Digest> digest(const RedistributeBuffers& buffers) const;

 private:
  void fill_source(Rank rank, std::byte* source) const;

  const Layout& source_;
  const Layout& target_;
  const std::uint64_t seed_;
  const double scale_;
  const TestValues values_;
};

}  // namespace cp::sim
