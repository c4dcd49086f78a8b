// All orders that can matter: as many as there must be, and never a result fewer than all orders give.
#include "sim/fabric/explore_orders.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/base/numbers.h"
#include "tests/fabric/fabric_plans.h"
#include "tests/plan/plan_writer.h"

namespace cp::sim {
namespace {

using cp::testing::PlanWriter;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSlots = 3;

FabricOptions in_order(const BatonOrder& order) { return {.schedule = Schedule::baton, .order = order}; }

// The one inout buffer of each rank after a run of the plans, as text.
std::string run_plans(Fabric& fabric, const std::vector<Plan>& plans) {
  std::vector<std::vector<std::int64_t>> data(plans.size());
  for (std::size_t rank = 0; rank < data.size(); ++rank) {
    for (std::int64_t i = 0; i < kSlots; ++i)
      data[rank].push_back(10 * static_cast<std::int64_t>(rank + 1) + i);
  }
  try {
    fabric.run([&](Rank rank, Device& device) {
      auto& mine = data[static_cast<std::size_t>(rank)];
      execute(plans[static_cast<std::size_t>(rank)], device,
              {{.buffer = 0, .data = mine.data(), .size_bytes = kSlots * 8}});
    });
  } catch (const Deadlock&) {
    return "deadlock";
  }
  std::string text;
  for (const auto& mine : data) text += str(join(mine), ";");
  return text;
}

// One step of one rank, on slots of its buffer.
struct Small {
  enum Kind { add, copy, reduce, shift } kind = add;
  StreamId stream = 0;
  std::int64_t from = 0, to = 1;
  std::vector<Edge> after = {};
};

void add_step(PlanWriter& w, GroupId group, Rank rank, std::int32_t ranks, const Small& step) {
  const View from = flat_view(0, step.from, 1), to = flat_view(0, step.to, 1);
  switch (step.kind) {
    case Small::add:
      w.add(step.stream, Kernel(Accumulate{ReduceOp::sum, from, to}), step.after);
      return;
    case Small::copy:
      w.add(step.stream, Kernel(Copy{from, to}), step.after);
      return;
    case Small::reduce:
      w.add(step.stream, Collective(AllReduce{group, ReduceOp::sum, from, to}), step.after);
      return;
    case Small::shift:
      break;
  }
  std::vector<Count> counts;
  for (std::int32_t i = 0; i < ranks; ++i) counts.push_back({i, (i + 1) % ranks, 1});
  w.add(step.stream,
        Collective(Exchange{
            group, {{(rank + 1) % ranks, from}}, {{(rank + ranks - 1) % ranks, to}}, counts_digest(counts)}),
        step.after);
}

std::vector<Plan> small_plans(const std::vector<std::vector<Small>>& steps) {
  std::vector<Plan> plans;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    PlanWriter w(static_cast<Rank>(i), {"a", "b", "c"});
    w.inout("data", kSlots, DType::i64);
    const GroupId group = w.group("all", ranks_up_to(static_cast<int>(steps.size())));
    for (const Small& step : steps[i])
      add_step(w, group, static_cast<Rank>(i), static_cast<std::int32_t>(steps.size()), step);
    plans.push_back(std::move(w).finish());
  }
  return plans;
}

OrdersReport explore(const std::vector<Plan>& plans, const OrderLimits& limits = {}) {
  return explore_orders(
      [&](const BatonOrder& order) {
        Fabric fabric(static_cast<int>(plans.size()), in_order(order));
        return run_plans(fabric, plans);
      },
      limits);
}

TEST(ExploreOrders, PlansOrderedByEdgesHaveOneOrder) {
  for (const int ranks : {1, 2, 3}) {
    // The builder writes every edge that memory asks for.
    const auto plans = plans_of(ranks, [&](PlanBuilder& b, Rank rank) {
      const BufferId data = b.inout("data", DType::i64, kSlots);
      const auto at = [&](std::int64_t i) { return flat_view(data, i, 1); };
      const GroupId all = b.group("all", ranks_up_to(ranks));
      for (int i = 0; i < 3; ++i) {
        b.add(b.stream("kernels"), Accumulate{ReduceOp::sum, at(i % 3), at((i + 1) % 3)});
        b.add(b.stream("comm"), AllReduce{all, ReduceOp::sum, at((i + 1) % 3), at((i + 2) % 3)});
        if (rank == 0) b.add(b.stream("more"), Copy{at((i + 2) % 3), at(i % 3)});
      }
    });
    const OrdersReport report = explore(plans);
    EXPECT_EQ(report.orders, 1) << ranks;
    EXPECT_TRUE(report.all);
    EXPECT_EQ(to_string(report), "1 order was taken, all that can matter");
  }
}

TEST(ExploreOrders, AMissingEdgeIsReportedWithBothOrders) {
  // Rank 1 reduces into the slot that a kernel on another stream reads.
  const std::vector<std::vector<Small>> steps = {
      {{Small::reduce, 0, 0, 1}},
      {{Small::reduce, 0, 0, 1}, {Small::copy, 1, 1, 2}},
  };
  const auto plans = small_plans(steps);
  const OrdersReport report = explore(plans);
  ASSERT_TRUE(report.different.has_value());
  EXPECT_FALSE(report.all);
  EXPECT_NE(report.first->result, report.different->result);
  EXPECT_THAT(to_string(report), AllOf(HasSubstr("2 orders were taken, and two of them differ"),
                                       HasSubstr(report.first->result), HasSubstr(report.different->result)));
  // Both can be given again.
  for (const ExploredOrder& order : {*report.first, *report.different}) {
    Fabric fabric(2, in_order({.kind = BatonOrder::Kind::given, .turns = order.turns}));
    EXPECT_EQ(run_plans(fabric, plans), order.result);
    EXPECT_EQ(fabric.turns(), order.turns);
  }
  // The edge makes it one order.
  auto ordered = steps;
  ordered[1][1].after = {{0, 0}};
  EXPECT_EQ(explore(small_plans(ordered)).orders, 1);
}

TEST(ExploreOrders, OrdersAreAsManyAsDependentTurnsAllow) {
  // Three streams of one rank add into one slot: 3! orders. Of two ranks that touch nothing in common: 3! for
  // each, which all go together.
  const std::vector<Small> three = {{Small::add, 0, 0, 2}, {Small::add, 1, 1, 2}, {Small::add, 2, 0, 2}};
  EXPECT_EQ(explore(small_plans({three})).orders, 6);
  EXPECT_EQ(explore(small_plans({three, three})).orders, 36);
  // Readers of one slot are independent.
  EXPECT_EQ(explore(small_plans({{{Small::copy, 0, 0, 1}, {Small::copy, 1, 0, 2}}})).orders, 1);
  // A collective of three ranks: one order, or the 3! of arriving.
  const std::vector<Small> reduce = {{Small::reduce, 0, 0, 1}};
  const auto meeting = small_plans({reduce, reduce, reduce});
  EXPECT_EQ(explore(meeting).orders, 1);
  EXPECT_EQ(explore(meeting, {.arrivals_matter = true}).orders, 6);
}

TEST(ExploreOrders, TheLimitOfOrdersIsSaid) {
  const std::vector<Small> three = {{Small::add, 0, 0, 2}, {Small::add, 1, 1, 2}, {Small::add, 2, 0, 2}};
  const OrdersReport report = explore(small_plans({three, three}), {.orders = 10});
  EXPECT_FALSE(report.all);
  EXPECT_EQ(report.orders + report.cut_short, 10);
  EXPECT_THAT(to_string(report), HasSubstr("not all that can matter: the limit was reached"));
}

TEST(ExploreOrders, ErrorsAreResultsToo) {
  const auto plans = plans_of(2, [](PlanBuilder& b, Rank rank) {
    for (const char* group : {rank == 0 ? "a" : "b", rank == 0 ? "b" : "a"}) add_all_reduce(b, group, {0, 1});
  });
  const OrdersReport report = explore_orders([&](const BatonOrder& order) {
    Fabric fabric(2, in_order(order));
    execute_all(fabric, plans);
    return std::string("ended");
  });
  EXPECT_THAT(report.first->result, HasSubstr("error deadlock: deadlock"));
  EXPECT_TRUE(report.all);
}

TEST(ExploreOrders, ARunThatDoesNotRepeatItselfIsRefused) {
  int runs = 0;
  const std::vector<Small> two = {{Small::add, 0, 0, 2}, {Small::add, 1, 1, 2}};
  const auto plans = small_plans({two}), other = small_plans({{two[0]}});
  const auto explore_changing = [&] {
    explore_orders([&](const BatonOrder& order) {
      Fabric fabric(1, in_order(order));
      return run_plans(fabric, runs++ == 0 ? plans : other);
    });
  };
  EXPECT_THAT(message_of<InvalidInput>(explore_changing), HasSubstr("has other choices than it had before"));
}

TEST(ExploreOrders, ABodyMaySynchronizeAndRunSeveralTimes) {
  // What comes before a synchronize, or in an earlier run, is before all that comes after: one order.
  const auto plans = small_plans({{{Small::add, 0, 0, 1}}, {{Small::add, 0, 0, 1}}});
  const auto more = small_plans({{{Small::add, 1, 0, 1}}, {{Small::add, 1, 0, 1}}});
  std::vector<std::int64_t> data(2 * kSlots, 1);
  const OrdersReport report = explore_orders([&](const BatonOrder& order) {
    Fabric fabric(2, in_order(order));
    const auto bindings = [&](Rank rank) {
      return Bindings{{.buffer = 0, .data = data.data() + rank * kSlots, .size_bytes = kSlots * 8}};
    };
    for (int run = 0; run < 2; ++run) {
      fabric.run([&](Rank rank, Device& device) {
        for (const auto& each : {plans, more})
          execute(each[static_cast<std::size_t>(rank)], device, bindings(rank));
      });
    }
    return std::string("ended");
  });
  EXPECT_EQ(report.orders, 1);
  EXPECT_TRUE(report.all);
}

// ---- against all orders, without any reduction ----

class AllOrders final : public TurnChooser {
 public:
  void begin_run() override { depth_ = 0; }
  std::size_t choose(std::span<const Turn> turns, const TurnInspector&) override {
    if (depth_ == choices_.size()) choices_.push_back({0, turns.size()});
    return choices_[depth_++].first;
  }
  bool next() {
    while (!choices_.empty() && ++choices_.back().first == choices_.back().second) choices_.pop_back();
    return !choices_.empty();
  }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> choices_;
  std::size_t depth_ = 0;
};

std::vector<Plan> random_plans(std::uint64_t seed) {
  Numbers random(seed);
  const std::size_t ranks = 1 + random.below(3), meetings = random.below(2);
  std::vector<std::vector<Small>> steps(ranks);
  const auto kind = random.below(2) == 0 ? Small::reduce : Small::shift;
  for (auto& mine : steps) {
    const std::size_t kernels = ranks == 3 ? random.below(2) : 1 + random.below(2);
    for (std::size_t i = 0; i < kernels; ++i) {
      mine.push_back(
          {random.below(2) == 0 ? Small::add : Small::copy, static_cast<StreamId>(random.below(2))});
    }
    if (ranks > 1 && meetings > 0) {
      mine.insert(mine.begin() + static_cast<std::ptrdiff_t>(random.below(mine.size() + 1)), Small{kind, 2});
    }
    for (std::size_t i = 0; i < mine.size(); ++i) {
      Small& step = mine[i];
      step.from = static_cast<std::int64_t>(random.below(kSlots));
      step.to = (step.from + 1 + static_cast<std::int64_t>(random.below(kSlots - 1))) % kSlots;
      if (i == 0 || random.below(3) > 0) continue;
      const std::size_t earlier = random.below(i);
      if (mine[earlier].stream != step.stream) step.after = {{static_cast<StepId>(earlier), 0}};
    }
  }
  return small_plans(steps);
}

TEST(ExploreOrders, FindsEveryResultThatAnyOrderGives) {
  int several = 0, compared = 0;
  std::int64_t orders = 0, explored = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    const auto plans = random_plans(seed);
    const auto all = std::make_shared<AllOrders>();
    Fabric fabric(static_cast<int>(plans.size()),
                  in_order({.kind = BatonOrder::Kind::chosen, .chooser = all}));
    std::set<std::string> expected;
    int count = 0;
    bool more = true;
    for (; more && count < 500; ++count) {
      expected.insert(run_plans(fabric, plans));
      more = all->next();
    }
    if (more) continue;
    for (const bool arrivals_matter : {false, true}) {
      std::set<std::string> found;
      const OrdersReport report = explore_orders(
          [&](const BatonOrder& order) {
            Fabric each(static_cast<int>(plans.size()), in_order(order));
            const std::string result = run_plans(each, plans);
            found.insert(result);
            return std::string();
          },
          {.arrivals_matter = arrivals_matter});
      ASSERT_TRUE(report.all);
      ASSERT_EQ(found, expected) << "seed " << seed << ", " << report.orders << " of " << count << " orders";
      if (!arrivals_matter) explored += report.orders;
    }
    ++compared;
    orders += count;
    several += expected.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(compared, 40);
  EXPECT_GT(several, 10);
  EXPECT_LT(explored * 10, orders);  // the reduction is worth something
  RecordProperty("compared", compared);
  RecordProperty("several", several);
  RecordProperty("orders", static_cast<int>(orders));
  RecordProperty("explored", static_cast<int>(explored));
}

}  // namespace
}  // namespace cp::sim
