// Shards of small tensors as plain lists of numbers, filled and read element by element, and plans run on them.
//
// Independent of index sets, of sim/run and of its data: what a rank holds is found index by index.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "shared/placement/layout.h"
#include "shared/plan/plan.h"
#include "sim/fabric/fabric.h"

namespace cp::testing {

// By rank; dense row-major in local order. Ranks outside of the layout's mesh have no entry.
using Shards = std::map<Rank, std::vector<double>>;

// The row-major numbers, in the whole tensor, of the elements that the rank holds, in local order.
std::vector<std::int64_t> element_numbers(const Layout& layout, Rank rank);

// Which of the contributions to its elements a rank holds: its coordinates along the partial axes, row-major.
std::int64_t contribution_of(const Layout& layout, Rank rank);
std::int64_t num_contributions(const Layout& layout);

// What contribution `contribution` to element number `element` is: replicas are equal.
using ElementValue = std::function<double(std::int64_t element, std::int64_t contribution)>;
Shards make_shards(const Layout& layout, const ElementValue& value);
inline Shards make_shards(const Layout& layout, const std::function<double(std::int64_t)>& value) {
  return make_shards(layout, [&](std::int64_t element, std::int64_t) { return value(element); });
}

// A number in [-limit, limit] that depends on all arguments: equal in every process.
double small_integer(std::uint64_t seed, std::int64_t element, std::int64_t contribution, std::int64_t limit);

// The sum over all ranks and elements of a * b: the inner product on storage of contract 10.
double inner_product(const Shards& a, const Shards& b);

// Runs the plans of a redistribution (lower.h), one for each rank of both meshes, and returns what lies in the
// target's shards; ranks that hold nothing have empty lists. Throws what the fabric throws.
Shards run_plans(std::span<const Plan> plans, const Shards& source, const sim::FabricOptions& options = {});

// The collectives of one rank's plan, in order; those of an exchange in rounds one by one.
std::vector<const Collective*> collectives_of(const Plan& plan);

}  // namespace cp::testing
