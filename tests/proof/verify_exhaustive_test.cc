#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "sim/proof/exhaustive/exhaustive.h"
#include "sim/proof/exhaustive/layouts.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using Chain = ExhaustiveSearch::Chain;

std::size_t number_of(const ExhaustiveSearch& search, const std::string& placements, std::size_t first = 0) {
  for (std::size_t i = first; i < search.layouts().size(); ++i) {
    if (placements_to_string(search.layouts()[i].layout) == placements) return i;
  }
  ADD_FAILURE() << "no layout " << placements;
  return 0;
}

std::optional<Chain> cheapest(const ExhaustiveSearch& search, const std::string& from,
                              const std::string& to) {
  const std::size_t target = number_of(search, to, search.first_target());
  return search.cheapest(number_of(search, from))[target - search.first_target()];
}

ExhaustiveSearch search_on(const std::string& mesh, const Shape& shape, double max_memory_factor = 1,
                           const std::string& to_mesh = "") {
  return {Mesh::parse(mesh), Mesh::parse(to_mesh.empty() ? mesh : to_mesh), shape, DType::f32, CostModel(),
          max_memory_factor};
}

TEST(ExhaustiveSearch, ReducesEverywhereThenSlices) {
  const ExhaustiveSearch search = search_on("a=2,b=2", {8, 8});
  const std::optional<Chain> chain = cheapest(search, "P(sum),P(sum)", "R,S(0)");
  ASSERT_TRUE(chain);
  EXPECT_EQ(search.to_string(*chain), "all_reduce P(sum),P(sum) -> R,R; slice R,R -> R,S(0)");
  // 10 + 6 latencies, 384 bytes at 0.85 x 300 GB/s; 3, 256 bytes at 2 TB/s.
  EXPECT_EQ(chain->time_ps, 16'001'506 + 3'000'128);
}

TEST(ExhaustiveSearch, AnEquivalentLayoutIsTheTarget) {
  // One element: whoever comes first along both axes has it.
  const ExhaustiveSearch search = search_on("a=2,b=2", {1});
  const std::optional<Chain> chain = cheapest(search, "S(0),S(0)", "S(0)[1],S(0)[0]");
  ASSERT_TRUE(chain);
  EXPECT_EQ(chain->time_ps, 0);
  EXPECT_TRUE(chain->steps.empty());
  // Eight elements: the second and the third quarter change places.
  EXPECT_GT(cheapest(search_on("a=2,b=2", {8}), "S(0),S(0)", "S(0)[1],S(0)[0]")->time_ps, 0);
}

TEST(ExhaustiveSearch, LessMemoryCostsTimeAndInTheEndThereIsNone) {
  const auto chain = [](double factor) {
    return cheapest(search_on("a=2,b=2", {9, 7}, factor), "P(sum),P(sum)", "S(0),S(1)");
  };
  // In one reduce_scatter; in rounds; not at all.
  ASSERT_TRUE(chain(1));
  EXPECT_EQ(chain(1)->steps.front().kind, MoveKind::reduce_scatter);
  ASSERT_TRUE(chain(0.4));
  EXPECT_EQ(chain(0.4)->steps.front().kind, MoveKind::reduce_exchange);
  EXPECT_GT(chain(0.4)->time_ps, chain(1)->time_ps);
  EXPECT_FALSE(chain(0.01));
}

TEST(ExhaustiveSearch, IllegalPairsHaveNoChain) {
  const ExhaustiveSearch search = search_on("a=2,b=2", {8});
  EXPECT_FALSE(cheapest(search, "S(0),R", "P(sum),R"));
  EXPECT_TRUE(cheapest(search, "P(sum),R", "P(sum),S(0)"));
}

TEST(ExhaustiveSearch, AMoveIsOverWhenItsSlowestRankIs) {
  // A gather by ranks that took no part in the reduction would be a third step of two latencies: one exchange
  // has both.
  const ExhaustiveSearch search = search_on("a=4", {8, 8}, 1, "a=2,b=2@4/5/6/7");
  const std::optional<Chain> chain = cheapest(search, "P(sum)", "R,R");
  ASSERT_TRUE(chain);
  EXPECT_EQ(search.to_string(*chain), "reduce_scatter P(sum) -> S(0); exchange S(0) -> R,R");
  EXPECT_GT(chain->time_ps, 2 * 10'000'000);
}

// ---- against all chains of up to three moves, followed one by one

class AllChains {
 public:
  AllChains(const Mesh& source, const Mesh& target, const Shape& shape, const CostModel& cost,
            double bound_bytes, const Layout& goal)
      : world_(source, target), cost_(cost), bound_bytes_(bound_bytes), goal_(goal) {
    for (Layout& layout : all_layouts(source, shape, DType::f32, ReduceOp::sum)) {
      layouts_.emplace_back(std::move(layout));
    }
    if (source == target) return;
    for (Layout& layout : all_layouts(target, shape, DType::f32, std::nullopt)) {
      layouts_.emplace_back(std::move(layout));
    }
  }

  std::int64_t cheapest_ps(const Layout& from, int max_moves) {
    best_ = std::numeric_limits<std::int64_t>::max();
    follow(Written(from), 0, true, max_moves);
    return best_;
  }

 private:
  void follow(const Written& from, std::int64_t time_ps, bool is_source, int moves_left) {
    if (equivalent(from.layout, goal_.layout)) best_ = std::min(best_, is_source ? 0 : best_);
    if (moves_left == 0 || time_ps >= best_) return;
    for (const Written& to : layouts_) {
      const bool crosses = from.layout.mesh != to.layout.mesh;
      std::vector<MoveForm> forms;
      if (!crosses) forms = moves_between(from.layout, to.layout);
      if (to.layout == goal_.layout || (crosses && splits_further(to.layout, goal_.layout))) {
        const std::optional<MoveForm> straight = straight_move(from.layout, to.layout);
        // A crossing reduction leads to the target only.
        if (straight && (to.layout == goal_.layout || straight->kind == MoveKind::exchange))
          forms.push_back(*straight);
      }
      for (const MoveForm& form : forms) {
        const MoveCost cost = cost_of(form, from, to, world_, cost_);
        const std::int64_t next = time_ps + *std::max_element(cost.time_ps.begin(), cost.time_ps.end());
        const bool old_is_temporary = !is_source;
        if (equivalent(to.layout, goal_.layout) &&
            static_cast<double>(cost.temporary_bytes[old_is_temporary][false]) <= bound_bytes_) {
          best_ = std::min(best_, next);
        }
        if (static_cast<double>(cost.temporary_bytes[old_is_temporary][true]) <= bound_bytes_) {
          follow(to, next, false, moves_left - 1);
        }
      }
    }
  }

  MeshPair world_;
  CostModel cost_;
  double bound_bytes_;
  Written goal_;
  std::vector<Written> layouts_;
  std::int64_t best_ = 0;
};

double between(std::string_view what, int low, int high, double unit) {
  return unit * pick(what, rc::gen::inRange(low, high + 1));
}

CostModel any_model() {
  CostModel cost;
  cost.step_latency_us = between("step_latency_us", 0, 20, 0.01);
  cost.peer_latency_us = between("peer_latency_us", 0, 20, 0.001);
  cost.local_latency_us = between("local_latency_us", 0, 20, 0.001);
  cost.memory_gbps = between("memory_gbps", 1, 50, 20);
  cost.axis_gbps = {{"a", between("gbps of a", 1, 50, 2)},
                    {"b", between("gbps of b", 1, 50, 2)},
                    {"c", between("gbps of c", 1, 50, 2)}};
  cost.exchange_efficiency = between("exchange_efficiency", 1, 10, 0.1);
  cost.all_reduce_efficiency = between("all_reduce_efficiency", 1, 10, 0.1);
  return cost;
}

struct Problem {
  const char *source, *target;
  Shape shape;
};
const Problem kProblems[] = {
    {"a=2,b=2", "a=2,b=2", {5, 3}},  {"a=3", "a=3", {4, 2}},  {"a=2,b=3", "a=2,b=3", {13}},
    {"a=2", "c=2@1/0", {3, 2}},      {"a=2", "c=2@2/3", {3}}, {"a=2,b=2", "c=3@0/5/3", {4}},
    {"a=3", "c=2,b=2@1/2/3/4", {5}},
};

RC_GTEST_PROP(ExhaustiveSearch, IsNeverSlowerThanAnyChainOfUpToThreeMovesAndEqualsTheBest, ()) {
  const Problem& problem = kProblems[pick("problem", rc::gen::inRange<std::size_t>(0, std::size(kProblems)))];
  const Mesh source = Mesh::parse(problem.source), target = Mesh::parse(problem.target);
  const CostModel cost = any_model();
  const double factor = between("max_memory_factor", 2, 12, 0.1);
  const ExhaustiveSearch search(source, target, problem.shape, DType::f32, cost, factor);
  const std::size_t from = pick("from", rc::gen::inRange<std::size_t>(0, search.num_sources()));
  const std::vector<std::optional<Chain>> chains = search.cheapest(from);
  const std::size_t to = pick("to", rc::gen::inRange(search.first_target(), search.layouts().size()));
  const std::optional<Chain>& chain = chains[to - search.first_target()];
  const Layout& from_layout = search.layouts()[from].layout;
  const Layout& to_layout = search.layouts()[to].layout;
  if (!is_legal_pair(from_layout, to_layout)) RC_SUCCEED("illegal");

  AllChains all(source, target, problem.shape, cost, search.bound_bytes(from, to), to_layout);
  const std::int64_t best_ps = all.cheapest_ps(from_layout, 3);
  const bool found = best_ps != std::numeric_limits<std::int64_t>::max();
  if (!chain) {
    RC_ASSERT(!found);
    return;
  }
  RC_TAG(chain->steps.size());
  RC_ASSERT(chain->time_ps <= best_ps);
  if (chain->steps.size() <= 3) RC_ASSERT(chain->time_ps == best_ps);
}

}  // namespace
}  // namespace cp::sim
