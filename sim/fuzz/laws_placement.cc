// Index sets and meshes against lists of their elements.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/placement/index_set.h"
#include "shared/placement/layout.h"
#include "sim/base/numbers.h"
#include "sim/fuzz/laws.h"
#include "sim/proof/exhaustive/index_oracle.h"

namespace cp::sim {
namespace {

// Longer lists are left out, since indices are listed one by one. Chosen, so that a case stays within
// milliseconds.
constexpr std::int64_t kMostIndices = 8192;
// The most runs of an index set that is drawn. intersect() compares small sets run by run, and looks for the
// pairs of larger ones by a search, which has to be reached too (shared/placement/intersect.cc).
constexpr int kMostRuns = 24;
// How many pairs of sets, or of groups, one case compares. Chosen, like kMostIndices.
constexpr int kPairs = 8;

Indices listed(const IndexSet& set) {
  Indices list;
  for (const Run& run : set) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (std::int64_t j = 0; j < run.run; ++j) list.push_back(run.begin + i * run.stride + j);
    }
  }
  return list;
}

// Runs that lie inside of each other's gaps, in any order: more than layouts make, and all that the header
// allows.
IndexSet any_set(Numbers& numbers, std::int64_t universe) {
  std::vector<bool> taken(idx(universe));
  IndexSet set;
  for (std::int64_t tries = numbers.in(1, kMostRuns); tries > 0; --tries) {
    Run run;
    run.run = numbers.in(1, 4);
    run.count = numbers.one_in(3) ? 1 : numbers.in(2, 9);
    run.stride = run.count == 1 ? run.run : run.run + numbers.in(0, numbers.one_in(3) ? universe / 9 : 5);
    const std::int64_t extent = (run.count - 1) * run.stride + run.run;
    if (extent > universe) continue;
    run.begin = numbers.in(0, universe - extent);
    const Indices list = listed({run});
    if (std::ranges::any_of(list, [&](std::int64_t index) { return taken[idx(index)]; })) continue;
    for (const std::int64_t index : list) taken[idx(index)] = true;
    if (run.count > 1 && numbers.one_in(4)) {  // its blocks one by one, the last one first
      for (std::int64_t i = run.count - 1; i >= 0; --i)
        set.push_back({run.begin + i * run.stride, run.run, run.run, 1});
      continue;
    }
    set.push_back(run);
  }
  return canonical(std::move(set));
}

void compare(const IndexSet& a, const IndexSet& b, const Trial& trial) {
  const Indices in_a = listed(a), in_b = listed(b);
  std::map<std::int64_t, std::int64_t> place_in_b;
  for (std::size_t i = 0; i < in_b.size(); ++i) place_in_b.emplace(in_b[i], i);
  // What both hold, by the place in a: global index and place in b.
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> expected, found;
  for (std::size_t i = 0; i < in_a.size(); ++i) {
    const auto at = place_in_b.find(in_a[i]);
    if (at != place_in_b.end())
      expected.emplace(static_cast<std::int64_t>(i), std::pair(in_a[i], at->second));
  }
  const auto both = [&] { return str(to_string(a), " and ", to_string(b)); };
  std::int64_t last = -1;
  for (const Overlap& overlap : intersect(a, b)) {
    trial.require(overlap.in_a > last, "overlaps", "those of ", both(), " are not in the first one's order");
    last = overlap.in_a;
    const bool one = overlap.count == 1;
    for (const std::int64_t stride : {overlap.stride_global, overlap.stride_a, overlap.stride_b}) {
      trial.require(one ? stride == overlap.run : stride >= overlap.run, "overlaps", "one of ", both(),
                    " has ", overlap.count, " runs of ", overlap.run, " at a stride of ", stride);
    }
    for (std::int64_t k = 0; k < overlap.count; ++k) {
      for (std::int64_t i = 0; i < overlap.run; ++i) {
        const bool is_new = found
                                .emplace(overlap.in_a + k * overlap.stride_a + i,
                                         std::pair(overlap.global + k * overlap.stride_global + i,
                                                   overlap.in_b + k * overlap.stride_b + i))
                                .second;
        trial.require(is_new, "overlaps", both(), " share an index twice");
      }
    }
  }
  trial.require(found == expected, "overlaps", both(), " share ", found.size(), " indices where ",
                expected.size(), " are due, or in other places");
  trial.require(intersection_size(a, b) == static_cast<std::int64_t>(expected.size()), "overlaps",
                "intersection_size() of ", both(), " is ", intersection_size(a, b), ", where ",
                expected.size(), " are due");
}

void overlaps(const RedistributeRequest& request, const Trial& trial) {
  Numbers numbers(Numbers::combine(request.seed, 0x6f7665));
  for (int pair = 0; pair < kPairs; ++pair) {
    const std::int64_t universe = numbers.in(4, 400);
    compare(any_set(numbers, universe), any_set(numbers, universe), trial);
  }
  for (std::size_t dim = 0; dim < request.source.shape.size(); ++dim) {
    if (request.source.shape[dim] > kMostIndices) continue;
    for (int pair = 0; pair < kPairs; ++pair) {
      const auto& from = request.source.mesh.ranks();
      const auto& to = request.target.mesh.ranks();
      compare(indices(request.source, static_cast<int>(dim), from[numbers.below(from.size())]),
              indices(request.target, static_cast<int>(dim), to[numbers.below(to.size())]), trial);
    }
  }
}

// Groups along some axes in any order: the ranks whose other coordinates are equal, the last axis fastest.
void groups(const Mesh& mesh, Numbers& numbers, const Trial& trial) {
  if (mesh.size() > kMostIndices) return;
  std::vector<int> axes(idx(mesh.num_axes()));
  std::iota(axes.begin(), axes.end(), 0);
  numbers.shuffle(axes);
  axes.resize(idx(numbers.in(0, std::min(4, mesh.num_axes()))));
  // By the other coordinates, then by those along `axes`.
  std::map<std::vector<int>, std::map<std::vector<int>, Rank>> expected;
  for (int index = 0; index < mesh.size(); ++index) {
    std::vector<int> others(idx(mesh.num_axes())), along;
    for (int axis = mesh.num_axes() - 1, left = index; axis >= 0; left /= mesh.axis_size(axis), --axis)
      others[idx(axis)] = left % mesh.axis_size(axis);
    for (const int axis : axes) along.push_back(std::exchange(others[idx(axis)], 0));
    expected[others][along] = mesh.ranks()[idx(index)];
  }
  std::vector<std::vector<Rank>> lists;
  for (const auto& [others, members] : expected) {
    lists.emplace_back();
    for (const auto& [along, rank] : members) lists.back().push_back(rank);
  }
  trial.require(mesh.groups(axes) == lists, "groups", "the groups of ", mesh.to_string(), " along axes ",
                join(axes), " are not those of equal coordinates");
  const std::vector<Rank>& any = lists[numbers.below(lists.size())];
  trial.require(mesh.group_of(any[numbers.below(any.size())], axes) == any, "groups", "the group of ",
                mesh.to_string(), " along axes ", join(axes), " is not ", join(any));
}

}  // namespace

void check_placement_laws(const RedistributeRequest& request, const Trial& trial) {
  if (trial.asks("overlaps")) overlaps(request, trial);
  if (!trial.asks("groups")) return;
  Numbers numbers(Numbers::combine(request.seed, 0x67726f));
  for (int i = 0; i < kPairs; ++i) {
    for (const Layout* layout : {&request.source, &request.target}) groups(layout->mesh, numbers, trial);
  }
}

}  // namespace cp::sim
