// What is sharded, whole rows, pieces of an MLP and host memory: as the search finds them, and what they
// take.
#include <algorithm>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/planner/search/bound.h"
#include "sim/planner/search/completion.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/search.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using testing::small_question;

double part_us(const Candidate& candidate, TimePart wanted) {
  double us = 0;
  for (const PartTime& each : candidate.parts) us += each.part == wanted ? each.us : 0;
  return us;
}

Candidate evaluated(const PlanQuestion& question, const char* layout) {
  return Evaluator(question).evaluate(parse_parallel_layout(layout));
}

TEST(StepChoices, AreAllInTheSpace) {
  const PlanQuestion question = small_question(8);
  const LayoutSpace space(question, true);
  std::set<std::string> texts;
  for (const ParallelLayout& family : space.families()) {
    for (const ParallelLayout& layout : space.members(family)) texts.insert(to_string(layout));
  }
  for (const char* text : {"dp_shard=8", "dp_shard=8,zero=1", "dp_shard=8,zero=2", "tp=8",
                           "tp=8,sequence_parallel=no", "tp=2,dp_shard=4,zero=1,sequence_parallel=no",
                           "tp=2,dp_shard=2,pp=2,sequence_parallel=no", "dp_shard=8,mlp_chunks=4",
                           "dp_shard=8,recompute=full,loss_chunks=16,mlp_chunks=16,activations=host"}) {
    EXPECT_TRUE(texts.contains(to_string(parse_parallel_layout(text)))) << text;
  }
  // Without a framework that has them, and unless they are asked for, none of them is.
  for (const ParallelLayout& family : LayoutSpace(question).families()) {
    EXPECT_TRUE(family.zero == 0 && family.sequence_parallel) << to_string(family);
    for (const ParallelLayout& layout : LayoutSpace(question).members(family))
      EXPECT_TRUE(layout.mlp_chunks == 1 && !layout.host_activations) << to_string(layout);
  }
  // What means the same as another layout is not.
  for (const std::string& text : texts) {
    const ParallelLayout layout = parse_parallel_layout(text);
    EXPECT_TRUE(layout.sequence_parallel || layout.tp > 1) << text;
    EXPECT_TRUE(layout.zero == 0 || (layout.pp == 1 && layout.sharding_size() > 1 && layout.zero < 3))
        << text;
  }
}

TEST(StepChoices, FixedOnesAreKept) {
  PlanQuestion question = small_question(8);
  question.fixed.zero = 1, question.fixed.sequence_parallel = false, question.fixed.mlp_chunks = 2;
  question.fixed.host_activations = true;
  const LayoutSpace space(question);
  for (const ParallelLayout& family : space.families()) {
    EXPECT_TRUE(family.sharding_size() == 1 || family.zero_stage() == 1) << to_string(family);
    EXPECT_TRUE(family.tp == 1 || !family.sequence_parallel) << to_string(family);
    for (const ParallelLayout& layout : space.members(family))
      EXPECT_TRUE(layout.mlp_chunks == 2 && layout.host_activations) << to_string(layout);
  }
}

// Parameters that are gathered once a step take less time the more micro-batches a step has, and more memory.
TEST(StepChoices, WholeParametersPayOffWithMicroBatches) {
  PlanQuestion question = small_question(8, 1024, 128);
  question.cluster.network.nic_gbps = 1;  // gathers between nodes are what takes the time
  const Candidate three = evaluated(question, "dp_shard=8"), one = evaluated(question, "dp_shard=8,zero=1");
  EXPECT_LT(one.step_us, 0.5 * three.step_us);
  EXPECT_GT(one.memory.used(), three.memory.used());
  question.fixed.dp_shard = 8, question.fixed.recompute = Recompute{}, question.fixed.micro_batch = 1;
  question.frameworks = {Framework::megatron};
  EXPECT_EQ(search_layouts(question).best.front().layout.zero, 1);
  // Where whole ones do not fit, they are sharded.
  const std::int64_t between = (counted_bytes(one.memory) + counted_bytes(three.memory)) / 2;
  question.max_memory_gib = static_cast<double>(between) / (1 << 30);
  EXPECT_NE(search_layouts(question).best.front().layout.zero, 1);
}

TEST(StepChoices, TheHostsOptimizerTakesTime) {
  PlanQuestion question = small_question(8);
  const Candidate on_gpu = evaluated(question, "dp_shard=8");
  question.workload.optimizer = parse_optimizer("adamw:offload");
  const Candidate offloaded = evaluated(question, "dp_shard=8");
  EXPECT_EQ(part_us(on_gpu, TimePart::exposed_offload), 0);
  EXPECT_GT(part_us(offloaded, TimePart::exposed_offload), 0);
  EXPECT_GT(offloaded.step_us, on_gpu.step_us);
  EXPECT_LT(offloaded.memory.used(), on_gpu.memory.used());
  // 30 bytes for each of an eighth of the parameters go through a quarter of the host's memory, and nothing
  // hides that.
  const double numel = 4 * (512 * (2 * 512 + 2 * 256) + 3 * 512 * 1024 + 2 * 512) + 2 * 8000 * 512 + 512;
  const double host_us = 30 * numel / 8 / (282.0 / 4) / 1e3;
  EXPECT_GT(part_us(offloaded, TimePart::exposed_offload), 0.99 * host_us);
  // Half of the memory's rate: as much again.
  question.cluster.node.host_memory_gbps /= 2;
  const Candidate slower = evaluated(question, "dp_shard=8");
  EXPECT_NEAR(slower.step_us - offloaded.step_us, host_us, 0.2 * host_us);
  EXPECT_GT(StepBound(question).ns(slower.layout), StepBound(question).ns(on_gpu.layout) * 0.999);
  EXPECT_LE(StepBound(question).ns(slower.layout), slower.step_us * 1e3);
}

// Copies hide behind layers, or take over.
TEST(StepChoices, ActivationsOnTheHostTakeWhatPcieDoesNotHide) {
  PlanQuestion question = small_question(4, 131072, 4);
  question.model.layers = 16;
  const Candidate stays = evaluated(question, "dp_shard=4,recompute=full");
  const char* away = "dp_shard=4,recompute=full,activations=host";
  const Candidate hidden = evaluated(question, away);
  EXPECT_LT(hidden.step_us, 1.02 * stays.step_us);
  EXPECT_LT(hidden.memory.activations * 5, stays.memory.activations);
  question.cluster.node.pcie_gbps = 0.1;
  const Candidate exposed = evaluated(question, away);
  // Each layer's input there and back.
  const double copies_us = 2 * 16 * 131072.0 * 512 * 2 / 0.1 / 1e3;
  EXPECT_GT(exposed.step_us, copies_us);
  EXPECT_GT(part_us(exposed, TimePart::exposed_offload), 0.5 * copies_us);
  EXPECT_EQ(exposed.bound, TimePart::exposed_offload);
}

// Pieces of an MLP and host memory are looked at where a layout does not fit without them.
TEST(StepChoices, WhatFitsWithoutThemDoesWithoutThem) {
  PlanQuestion question = small_question(4, 65536, 4);
  question.model.layers = 16;
  question.fixed.dp_shard = 4, question.fixed.zero = 3;
  question.frameworks = {Framework::deepspeed};
  SearchOptions all;
  all.exhaustive = true;
  const auto saves = [](const ParallelLayout& layout) {
    return layout.mlp_chunks > 1 || layout.host_activations;
  };
  const PlanAnswer roomy = search_layouts(question, all);
  for (const Candidate& candidate : roomy.all) EXPECT_FALSE(saves(candidate.layout));
  const auto leanest = [&](bool saving) {
    std::int64_t least = std::int64_t{1} << 60;
    const LayoutSpace space(question);
    for (const ParallelLayout& family : space.families()) {
      for (const ParallelLayout& layout : space.members(family)) {
        if (saves(layout) != saving || refuse(question.model, question.workload, layout)) continue;
        least = std::min(least, counted_bytes(memory_of({question.model, question.workload, layout},
                                                        memory_rules(question))));
      }
    }
    return least;
  };
  const std::int64_t without = leanest(false), with = leanest(true);
  ASSERT_LT(with, without);
  question.max_memory_gib = static_cast<double>((with + without) / 2) / (1 << 30);
  const PlanAnswer tight = search_layouts(question, all);
  for (const Candidate& candidate : tight.all) EXPECT_TRUE(saves(candidate.layout));
  EXPECT_FALSE(tight.all.empty());
}

}  // namespace
}  // namespace cp::sim
