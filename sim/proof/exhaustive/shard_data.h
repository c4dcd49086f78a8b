// Shards of small tensors as plain lists of numbers, filled and read element by element (index_oracle.h), and
// plans that run on them. It is for checks that share nothing with index sets, nor with sim/proof/run and its
// data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shared/placement/layout.h"
#include "shared/plan/plan.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/exhaustive/index_oracle.h"

namespace cp::sim {

// The shard of each rank: dense, row-major in local order. A rank outside of the layout's mesh has no entry.
using Shards = std::map<Rank, std::vector<double>>;

// The value of contribution `contribution` to element number `element`. Replicas have equal values.
using ElementValue = std::function<double(std::int64_t element, std::int64_t contribution)>;
Shards make_shards(const Layout& layout, const ElementValue& value);
inline Shards make_shards(const Layout& layout, const std::function<double(std::int64_t)>& value) {
  return make_shards(layout, [&](std::int64_t element, std::int64_t) { return value(element); });
}

// A whole number in [-limit, limit] that depends on all arguments. It is the same in every process.
double small_integer(std::uint64_t seed, std::int64_t element, std::int64_t contribution, std::int64_t limit);

// The sum over all ranks and elements of a * b: the inner product on storage of contract 10
// (docs/architecture.md).
double inner_product(const Shards& a, const Shards& b);

// Runs the plans of a redistribution (lower.h), one for each rank of both meshes, and returns what lies in
// the target's shards. A rank that holds nothing has an empty list. Throws what the fabric throws.
Shards run_plans(std::span<const Plan> plans, const Shards& source, const FabricOptions& options = {});

// Shards by the name of the buffer that holds them.
using NamedShards = std::map<std::string, Shards>;
// Runs plans, one for each rank of one mesh, with what `in` has of their inputs and inouts, and returns what
// lies in their outputs and inouts behind that. `in` must have each of the former. Throws what the fabric
// throws.
NamedShards run_named(std::span<const Plan> plans, const NamedShards& in);

}  // namespace cp::sim
