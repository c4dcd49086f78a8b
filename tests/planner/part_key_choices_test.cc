// Keys of parts of a step that layouts share see every choice that the parts' plans see.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/transformer/step_plan.h"
#include "sim/planner/search/attention_times.h"
#include "sim/planner/search/part_key.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

// Values that a choice may have, others than the default.
std::vector<int> others(int) { return {1, 2, 3}; }
std::vector<std::int64_t> others(std::int64_t) { return {1, 2, 300, 5000}; }
std::vector<bool> others(bool) { return {true, false}; }
std::vector<ShardingGroup> others(ShardingGroup) {
  return {ShardingGroup::dp_shard, ShardingGroup::dp_shard_cp};
}
std::vector<AxisOrder> others(AxisOrder) { return axis_orders(); }
std::vector<StateScan> others(StateScan) { return {StateScan::heads}; }
std::vector<Strategy::Keys> others(Strategy::Keys) { return {Strategy::Keys::latent}; }
std::vector<std::optional<Core>> others(const std::optional<Core>&) { return {Core::need_only}; }
std::vector<std::optional<Balance>> others(const std::optional<Balance>&) {
  return {Balance{Balance::Kind::head_tail}};
}
std::vector<Recompute> others(const Recompute&) {
  return {{Recompute::Kind::selective, 1}, {Recompute::Kind::full, 1}, {Recompute::Kind::every, 2}};
}
std::vector<Strategy> others(Strategy strategy) {
  strategy.balance = {Balance::Kind::head_tail};
  return {strategy};
}

// All layouts that differ from this one in one choice.
std::vector<std::pair<std::string, ParallelLayout>> neighbours(const ParallelLayout& layout) {
  std::vector<std::pair<std::string, ParallelLayout>> all;
  ParallelLayout next = layout;
  visit_choices(next, next, [&](const char* name, auto& choice) {
    const auto before = choice;
    for (const auto& other : others(before)) {
      choice = other;
      all.emplace_back(name, next);
    }
    choice = before;
  });
  return all;
}

// What a step's memory is read from: whatever the ranks are called.
std::vector<std::string> memory_of(const Plan& plan) {
  std::vector<std::string> all{str("arena ", plan.arena_bytes)};
  for (const Buffer& buffer : plan.buffers)
    all.push_back(
        str(buffer.name, " ", static_cast<int>(buffer.kind), " ", name(buffer.dtype), " ", buffer.numel));
  return all;
}

TEST(PartKey, SeesEachChoiceThatChangesAPlan) {
  PlanQuestion question = testing::small_question(8, 256, 8);
  question.model.layers = 4;
  for (const char* text : {"dp_shard=4,tp=2", "cp=2,dp_shard=4,strategy=ring", "pp=2,dp_shard=2,tp=2",
                           "pp=2,virtual_stages=2,dp_shard=4"}) {
    const StepRequest request{question.model, question.workload, parse_parallel_layout(text)};
    ASSERT_FALSE(refuse(request.model, request.workload, request.layout)) << text;
    int differ = 0;
    for (const auto& [choice, layout] : neighbours(request.layout)) {
      const StepRequest next{request.model, request.workload, layout};
      if (refuse(next.model, next.workload, layout) || parts_of(next) != parts_of(request)) continue;
      for (const StepPart part : parts_of(request)) {
        const bool equal =
            memory_of(step_plan(request, part, 0, 0)) == memory_of(step_plan(next, part, 0, 0));
        differ += equal ? 0 : 1;
        if (memory_key(request, part, 0, 0) != memory_key(next, part, 0, 0)) continue;
        EXPECT_TRUE(equal) << choice << ": " << name(part) << " of " << text << " and of "
                           << to_string(layout) << " have one key, and other buffers";
      }
    }
    EXPECT_GT(differ, 5) << text;
  }
}

// Times of a layout's attention, as numbers.
std::vector<double> numbers_of(const AttentionTimes& times) {
  std::vector<double> all(times.move_ns.begin(), times.move_ns.end());
  for (const AttentionTimes::Passes& of_kind : times.of_kinds) {
    for (const AttentionTimes::Pass& pass : {of_kind.forward, of_kind.backward})
      all.insert(all.end(), {pass.kernels_ns, pass.exposed_ns, pass.ring_ns, pass.behind_ns});
  }
  return all;
}

TEST(AttentionKey, SeesEachChoiceThatChangesTimes) {
  PlanQuestion question = testing::small_question(8, 2048, 8);
  set_layers(question.model, {{}, {1000, {}}, {{}, {}, false, Mixer::recurrence, true}, {}});
  question.model.layers = 4;
  question.model.recurrence = Recurrence{RecurrenceRule::delta, 8, 8, 64, 32, 4, false};
  const ParallelLayout layout = parse_parallel_layout("cp=4,dp_shard=2,strategy=ring");
  ASSERT_FALSE(refuse(question.model, question.workload, layout));
  const auto times_of = [&](const ParallelLayout& of) { return numbers_of(AttentionTimer(question).of(of)); };
  const std::vector<double> times = times_of(layout);
  int differ = 0;
  for (const auto& [choice, next] : neighbours(layout)) {
    if (refuse(question.model, question.workload, next)) continue;
    const bool equal = times_of(next) == times;
    differ += equal ? 0 : 1;
    if (attention_key(next, question.cluster) != attention_key(layout, question.cluster)) continue;
    EXPECT_TRUE(equal) << choice << ": " << to_string(next) << " has the key of " << to_string(layout)
                       << ", and other times";
  }
  EXPECT_GE(differ, 4);
}

}  // namespace
}  // namespace cp::sim
