// The model of progress and check() answer one question by different code: neither may say what the other one
// refutes.
#include "shared/plan/check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/proof/progress/progress.h"
#include "tests/progress/progress_plans.h"
#include "tests/support/hand_plans.h"

namespace cp::sim {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  int below(int count) {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<int>((z ^ (z >> 31)) % static_cast<std::uint64_t>(count));
  }

 private:
  std::uint64_t state_;
};

struct Operation {
  enum Kind { all_reduce, broadcast, ring, swap, all_pairs, fill } kind = all_reduce;
  int group = 0;
  std::vector<int> after;  // earlier operations, where a rank has both on streams that differ
};

struct RandomProgram {
  int world_size = 0;
  bool partial_exchanges = false;  // some do not make every member wait for every other one
  std::vector<std::vector<Rank>> groups;
  std::vector<int> streams;  // of the groups
  std::vector<Operation> operations;
  std::vector<std::vector<int>> order;  // by rank: its operations as it issues them
};

bool is_member(const RandomProgram& program, int group, Rank rank) {
  const auto& ranks = program.groups[static_cast<std::size_t>(group)];
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

RandomProgram random_program(std::uint64_t seed) {
  Random random(seed);
  RandomProgram program{
      .world_size = 2 + random.below(3), .groups = {}, .streams = {}, .operations = {}, .order = {}};
  const int groups = 2 + random.below(3);
  for (int g = 0; g < groups; ++g) {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < program.world_size; ++rank) ranks.push_back(rank);
    for (int leave = random.below(program.world_size - 1); leave > 0; --leave) {
      ranks.erase(ranks.begin() + random.below(static_cast<int>(ranks.size())));
    }
    std::rotate(ranks.begin(), ranks.begin() + random.below(static_cast<int>(ranks.size())), ranks.end());
    program.groups.push_back(ranks);
    program.streams.push_back(random.below(3));
  }
  const int operations = 2 + random.below(8);
  for (int i = 0; i < operations; ++i) {
    Operation operation{
        .kind = static_cast<Operation::Kind>(random.below(6)), .group = random.below(groups), .after = {}};
    if (i > 0 && random.below(3) == 0) operation.after.push_back(random.below(i));
    program.partial_exchanges |= operation.kind == Operation::ring || operation.kind == Operation::swap;
    program.operations.push_back(operation);
  }
  program.order.resize(static_cast<std::size_t>(program.world_size));
  for (Rank rank = 0; rank < program.world_size; ++rank) {
    auto& order = program.order[static_cast<std::size_t>(rank)];
    for (int i = 0; i < operations; ++i) {
      if (is_member(program, program.operations[static_cast<std::size_t>(i)].group, rank)) order.push_back(i);
    }
  }
  // On some ranks two neighbours change places; sometimes one is left out.
  for (int change = random.below(3); change > 0; --change) {
    auto& order = program.order[static_cast<std::size_t>(random.below(program.world_size))];
    if (order.size() < 2) continue;
    const auto at = static_cast<std::size_t>(random.below(static_cast<int>(order.size()) - 1));
    std::swap(order[at], order[at + 1]);
  }
  if (random.below(8) == 0) {
    auto& order = program.order[static_cast<std::size_t>(random.below(program.world_size))];
    if (!order.empty()) order.erase(order.begin() + random.below(static_cast<int>(order.size())));
  }
  return program;
}

// The transfers of one member, and all of the group's as counts.
std::vector<Count> counts_of(const Operation& operation, std::int32_t n) {
  std::vector<Count> counts;
  for (std::int32_t from = 0; from < n; ++from) {
    for (std::int32_t to = 0; to < n; ++to) {
      const bool ring = operation.kind == Operation::ring && to == (from + 1) % n;
      const bool swap = operation.kind == Operation::swap && from < 2 && to < 2;
      if (from != to && (ring || swap || operation.kind == Operation::all_pairs))
        counts.push_back({from, to, 2});
    }
  }
  return counts;
}

void add(const RandomProgram& program, int index, Rank rank, const std::vector<GroupId>& ids,
         std::vector<StepId>& steps, HandProgram& p) {
  const Operation& operation = program.operations[static_cast<std::size_t>(index)];
  const auto group = static_cast<std::size_t>(operation.group);
  const auto& ranks = program.groups[group];
  const StreamId stream = program.streams[group];
  std::vector<Edge> after;
  for (const int earlier : operation.after) {
    const int group_before = program.operations[static_cast<std::size_t>(earlier)].group;
    const StepId step = steps[static_cast<std::size_t>(earlier)];
    if (step >= 0 && program.streams[static_cast<std::size_t>(group_before)] != stream)
      after.push_back({step, 0});
  }
  StepId& step = steps[static_cast<std::size_t>(index)];
  switch (operation.kind) {
    case Operation::all_reduce:
      step = p.all_reduce(ids[group], stream, after);
      return;
    case Operation::broadcast:
      step = p.broadcast(ids[group], stream);
      return;
    case Operation::fill:
      step = p.fill(stream, after);
      return;
    case Operation::ring:
    case Operation::swap:
    case Operation::all_pairs:
      break;
  }
  const auto self = static_cast<std::int32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const std::vector<Count> counts = counts_of(operation, static_cast<std::int32_t>(ranks.size()));
  std::vector<HandProgram::To> sends, recvs;
  for (const Count& count : counts) {
    if (count.from == self) sends.push_back({count.to, count.numel});
    if (count.to == self) recvs.push_back({count.from, count.numel});
  }
  step = p.exchange(ids[group], sends, recvs, stream, after, counts_digest(counts));
}

std::vector<Plan> plans_of(const RandomProgram& program) {
  return programs(program.world_size,
                  [&](HandProgram& p, Rank rank) {
                    std::vector<GroupId> ids;
                    for (std::size_t g = 0; g < program.groups.size(); ++g) {
                      const bool member = is_member(program, static_cast<int>(g), rank);
                      ids.push_back(member ? p.group(str("g", g), program.groups[g]) : -1);
                    }
                    std::vector<StepId> steps(program.operations.size(), -1);
                    for (const int index : program.order[static_cast<std::size_t>(rank)])
                      add(program, index, rank, ids, steps, p);
                  },
                  {"s0", "s1", "s2"});
}

enum class Verdict { accepted, deadlock, mismatch };
Verdict verdict_of(const std::vector<Plan>& plans) {
  try {
    check(plans);
    return Verdict::accepted;
  } catch (const Deadlock&) {
    return Verdict::deadlock;
  } catch (const CollectiveMismatch&) {
    return Verdict::mismatch;
  }
}

std::vector<ProgressRules> rules_with_overlap() {
  std::vector<ProgressRules> rules = all_rules();
  for (const Launch launch : {Launch::any, Launch::begin_in_order}) {
    for (const Meeting meeting : {Meeting::transfers, Meeting::peers, Meeting::members}) {
      rules.push_back(
          {.name = str("launch ", static_cast<int>(launch), " meeting ", static_cast<int>(meeting)),
           .launch = launch,
           .meeting = meeting});
    }
  }
  return rules;
}

TEST(ProgressAndCheck, AgreeAboutRandomPrograms) {
  int accepted = 0, deadlocks = 0, mismatches = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const RandomProgram program = random_program(seed);
    const std::vector<Plan> plans = plans_of(program);
    const Verdict verdict = verdict_of(plans);
    switch (verdict) {
      case Verdict::accepted:
        ++accepted;
        for (const ProgressReport& report : explore_progress(plans, rules_with_overlap())) {
          ASSERT_EQ(report.ends, Ends::in_all_orders) << "seed " << seed << "\n" << to_string(report);
          ASSERT_EQ(report.mismatch, "") << "seed " << seed;
        }
        break;
      case Verdict::deadlock: {
        ++deadlocks;
        const ProgressReport report = explore_progress(plans, fabric_rules());
        ASSERT_EQ(report.ends, Ends::never) << "seed " << seed;
        ASSERT_TRUE(report.is_cycle) << "seed " << seed << "\n" << to_string(report);
        // Where every exchange makes every member wait for every other one, NCCL's rules are the fabric's.
        if (!program.partial_exchanges) {
          ASSERT_EQ(explore_progress(plans, nccl_rules(0)).ends, Ends::never) << "seed " << seed;
        }
        break;
      }
      case Verdict::mismatch: {
        ++mismatches;
        const ProgressReport report = explore_progress(plans, fabric_rules());
        ASSERT_TRUE(report.ends == Ends::never || !report.mismatch.empty() || program.partial_exchanges)
            << "seed " << seed << "\n"
            << to_string(report);
        break;
      }
    }
  }
  EXPECT_GT(accepted, 400);
  EXPECT_GT(deadlocks, 100);
  EXPECT_GT(mismatches, 100);
}

// A smaller space gives room for searches without any reduction.
TEST(ProgressAndCheck, OneOrderStandsForAllWhereRulesLeaveNoChoice) {
  ProgressLimits whole;
  whole.reduce = false;
  whole.states = 1'500;
  ProgressRules unordered{.name = "one at a time", .launch = Launch::one_at_a_time};
  int compared = 0, some = 0;
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    const std::vector<Plan> plans = plans_of(random_program(seed));
    if (plans.size() > 3) continue;
    for (const ProgressRules& rules :
         {nccl_rules(0), nccl_rules(8), gloo_rules(), fabric_rules(), unordered}) {
      const ProgressReport all = explore_progress(plans, rules, whole);
      if (!all.exhaustive) continue;
      const ProgressReport reduced = explore_progress(plans, rules);
      ASSERT_EQ(reduced.ends, all.ends) << "seed " << seed << "\n"
                                        << to_string(reduced) << "\n"
                                        << to_string(all);
      ++compared;
      some += all.ends == Ends::in_some_orders ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 150);
  EXPECT_GT(some, 5);
  RecordProperty("compared", compared);
  RecordProperty("some", some);
}

TEST(ProgressAndCheck, HandWrittenPlansEndUnderAllRules) {
  for (const int ranks : {2, 4}) {
    for (const cp::testing::PlanCase& plan_case : cp::testing::hand_plans(ranks)) {
      for (const ProgressReport& report : explore_progress(plan_case.plans, rules_with_overlap())) {
        EXPECT_EQ(report.ends, Ends::in_all_orders) << plan_case.name << "\n" << to_string(report);
      }
    }
  }
}

}  // namespace
}  // namespace cp::sim
