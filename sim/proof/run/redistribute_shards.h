// The source and target shards of one rank of a redistribution, on whatever device it runs. They are made
// from the elements' numbers alone (TestValues), and compared with what the index sets say.
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

// The shards of one rank. They own their bytes, to which the bindings point.
struct RedistributeBuffers {
  std::unique_ptr<std::byte[]> source, target;
  std::int64_t source_bytes = 0, target_bytes = 0;

  Bindings bindings() const;
};

// The elements of a target that are not what they should be.
struct RedistributeMismatch {
  Rank rank = 0;
  std::int64_t count = 0;
  std::int64_t global = -1, local = -1;  // the first one's number in the whole tensor, and in the shard
  double found = 0, expected = 0;
};

// Makes and compares shards. Any thread may use it.
class RedistributeShards {
 public:
  // The redistribution must outlive this. `scale` is what its plans multiply the result with.
  RedistributeShards(const Redistribution& redistribution, std::uint64_t seed, double scale = 1);

  // The rank's shards. The source is filled; the target is filled with a value that nobody expects.
  RedistributeBuffers make(Rank rank) const;

  // The ranks that hold contributions to the same elements of the target, and whose shards lie alike. If the
  // target is not partial, this is the rank alone.
  std::vector<Rank> partners_of(Rank rank) const;

  // Compares what the targets of all partners add up to, in their order. Returns nothing if all elements are
  // right.
  std::optional<RedistributeMismatch> compare(Rank first_partner,
                                              std::span<const RedistributeBuffers* const> partners) const;
  // In words: "3 elements on 2 ranks are wrong; the first one, ...". There must be one mismatch at least.
  std::string explain(std::span<const RedistributeMismatch> mismatches) const;

  // The digest of the target, if its bits are the same in every world; else nothing.
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
