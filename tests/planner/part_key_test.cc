#include "sim/planner/search/part_key.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/transformer/memory_reading.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "tests/planner/questions.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

// The layout; one that has its stages on half as many ranks; and those that place and split data parallelism
// in another way.
std::vector<ParallelLayout> with_other_data_parallelism(const PlanQuestion& question,
                                                        const ParallelLayout& layout) {
  std::vector<ParallelLayout> all{layout};
  ParallelLayout half = layout;
  half.pp /= 2, half.virtual_stages *= 2, half.dp_shard *= 2;
  if (layout.pp % 2 == 0 && layout.pp > 2 && !refuse(question.model, question.workload, half))
    all.push_back(half);
  for (int shard = 1; shard <= layout.dp(); shard *= 2) {
    for (const ShardingGroup group : {ShardingGroup::dp_shard, ShardingGroup::dp_shard_cp}) {
      for (const AxisOrder order : axis_orders()) {
        ParallelLayout other = layout;
        other.dp_shard = shard, other.dp_replicate = layout.dp() / shard;
        other.sharding = group, other.order = order;
        if (layout.dp() % shard == 0 && !refuse(question.model, question.workload, other))
          all.push_back(other);
      }
    }
  }
  return all;
}

// An evaluator that has seen other layouts, and so replays less, says what one says that has seen none.
RC_GTEST_PROP(PartKey, EqualKeysMeanEqualClocks, ()) {
  PlanQuestion question = testing::small_question(16);
  question.model.layers = pick("layers", rc::gen::element<std::int64_t>(4, 6));
  set_layers(question.model, std::vector<LayerKind>(static_cast<std::size_t>(question.model.layers)));
  if (pick("experts", rc::gen::arbitrary<bool>())) question.model.experts = Experts{4, 2, 512, 0};
  question.model.tied_embeddings = pick("tied", rc::gen::arbitrary<bool>());
  question.workload.optimizer.offload = pick("offload", rc::gen::element(false, false, true));
  Node& node = question.cluster.node;
  switch (pick("cluster", rc::gen::inRange(0, 4))) {
    case 1:  // two nodes are one domain
      node.nvlink_domain = 2 * node.gpus;
      break;
    case 2:
      node.nvlink_domain = 1, node.nvlink_gbps = 0;
      break;
    case 3:
      question.cluster.network.gpus_per_nic = 2;
      break;
    default:
      break;
  }
  const LayoutSpace space(question);
  std::vector<ParallelLayout> families = space.families();
  std::erase_if(families, [&](const ParallelLayout& family) {
    return family.dp() == 1 || refuse(question.model, question.workload, family);
  });
  const ParallelLayout family = pick("family", rc::gen::elementOf(families));
  const std::vector<ParallelLayout> members = space.members(family);
  Evaluator shared(question);
  for (const char* which : {"layout", "and another"}) {
    const ParallelLayout member = pick(which, rc::gen::elementOf(members));
    RC_PRE(!refuse(question.model, question.workload, member));
    for (const ParallelLayout& layout : with_other_data_parallelism(question, member)) {
      RC_LOG() << to_string(layout) << "\n";
      const Candidate known = shared.evaluate(layout), own = Evaluator(question).evaluate(layout);
      RC_ASSERT(known.step_us == own.step_us);
      RC_ASSERT(known.exposed_us == own.exposed_us);
      RC_ASSERT(known.nic_utilisation == own.nic_utilisation);
      RC_ASSERT(known.memory.used() == own.memory.used());
    }
  }
}

// Of layouts that share parts, with ranks that are read besides the busiest one: recurrences take more states
// in in the middle of cp.
TEST(PartKey, MemoryOfSharedPartsIsThatOfTheirOwnPlans) {
  PlanQuestion question = testing::small_question(16);
  question.model.layers = 4;
  question.model.recurrence = Recurrence{RecurrenceRule::delta, 8, 8, 128, 128, 4, false};
  const LayerKind recurrent{{}, {}, false, Mixer::recurrence, true};
  set_layers(question.model, {{}, recurrent, {}, recurrent});
  Evaluator evaluator(question);
  for (const ParallelLayout& layout : with_other_data_parallelism(
           question, parse_parallel_layout("pp=2,cp=4,dp_shard=2,strategy=ring,balance=head_tail"))) {
    SCOPED_TRACE(to_string(layout));
    const StepRequest request{question.model, question.workload, layout};
    EXPECT_EQ(evaluator.evaluate(layout).memory.used(), memory_of(request, memory_rules(question)).used());
  }
}

class PartKeyOf : public ::testing::Test {
 protected:
  PartKeyOf() { question_.model.layers = 8, set_layers(question_.model, std::vector<LayerKind>(8)); }
  StepRequest request(const char* layout) const {
    return {question_.model, question_.workload, parse_parallel_layout(layout)};
  }
  Digest key(const char* layout, StepPart part, int stage) const {
    const StepRequest of = request(layout);
    return clock_key(of, part, stage, busiest_rank(of, stage), question_.cluster);
  }
  bool same(const char* a, const char* b, StepPart part, int stage) const {
    return key(a, part, stage) == key(b, part, stage);
  }
  bool need_the_same(const char* a, const char* b, StepPart part, int stage) const {
    const auto key = [&](const StepRequest& of) {
      return memory_key(of, part, stage, busiest_rank(of, stage));
    };
    return key(request(a)) == key(request(b));
  }

  PlanQuestion question_ = testing::small_question(16);
};

TEST_F(PartKeyOf, StagesShareWhatDataParallelismDoesNotTouch) {
  for (const StepPart part : {StepPart::forward, StepPart::backward}) {
    EXPECT_TRUE(same("pp=4,dp_shard=4", "pp=4,dp_shard=2,dp_replicate=2", part, 1));
    EXPECT_TRUE(same("pp=4,dp_shard=4,loss_chunks=4", "pp=4,dp_replicate=4", part, 1));
    // As many stages on fewer ranks. Neighbours are on other nodes here and there.
    EXPECT_TRUE(same("pp=4,dp_shard=4", "pp=2,virtual_stages=2,dp_shard=8", part, 1));
    EXPECT_FALSE(same("pp=4,dp_shard=4", "pp=4,dp_shard=4,recompute=full", part, 1));
    EXPECT_FALSE(same("pp=4,dp_shard=4", "pp=4,dp_shard=4,micro_batch=2", part, 1));
    EXPECT_FALSE(same("pp=4,tp=2,dp_shard=2", "pp=4,cp=2,dp_shard=2", part, 1));
  }
  EXPECT_NE(key("pp=4,dp_shard=4", StepPart::forward, 0), key("pp=4,dp_shard=4", StepPart::forward, 1));
  EXPECT_NE(key("pp=4,dp_shard=4", StepPart::forward, 1), key("pp=4,dp_shard=4", StepPart::backward, 1));
  EXPECT_FALSE(same("pp=4,dp_shard=4,loss_chunks=4", "pp=4,dp_shard=4", StepPart::forward, 3));
}

// The update knows no rows: what any rank of a stage declares for it is known of all of them.
TEST_F(PartKeyOf, RanksOfAStageNeedTheSameForTheirUpdates) {
  for (const char* layout : {"tp=2,cp=4,dp_shard=2", "tp=2,cp=4,dp_shard=2,sharding=dp_shard"}) {
    const StepRequest of = request(layout);
    const auto declared = [&](Rank self) {
      const PlanMemory memory = memory_of_plan(step_plan(of, StepPart::update, 0, self));
      std::int64_t bytes = memory.layers.sum();
      for (const PlanMemory::Callers& buffer : memory.callers) bytes += buffer.bytes;
      return bytes;
    };
    for (const Rank rank : {1, 2, 7, 15}) {
      EXPECT_EQ(memory_key(of, StepPart::update, 0, rank), memory_key(of, StepPart::update, 0, 0)) << layout;
      EXPECT_EQ(declared(rank), declared(0)) << layout;
      EXPECT_NE(memory_key(of, StepPart::micro_batch, 0, rank), memory_key(of, StepPart::micro_batch, 0, 0));
    }
  }
}

// Nodes have four ranks.
TEST_F(PartKeyOf, ItMattersWhichRanksShareANodeAndNotWhichNodeThatIs) {
  question_ = testing::small_question(64);
  question_.model.layers = 8, set_layers(question_.model, std::vector<LayerKind>(8));
  for (const StepPart part : {StepPart::forward, StepPart::backward}) {
    // The middle stages begin on the nodes 4 and 8.
    EXPECT_EQ(key("pp=4,cp=2,dp_shard=8", part, 1), key("pp=4,cp=2,dp_shard=8", part, 2));
    // The cp ranks of one stage are on two nodes, two or four nodes apart; and on one.
    EXPECT_TRUE(same("pp=4,cp=2,dp_shard=8,order=tp-dp-cp-pp",
                     "pp=2,virtual_stages=2,cp=2,dp_shard=16,order=tp-dp-cp-pp", part, 1));
    EXPECT_FALSE(same("pp=4,cp=2,dp_shard=8", "pp=4,cp=2,dp_shard=8,order=tp-dp-cp-pp", part, 1));
    // Four ranks of one node, whose tp or cp ranks are neighbours: by NVLink it is the same.
    EXPECT_TRUE(same("pp=4,cp=2,tp=2,dp_shard=4", "pp=4,cp=2,tp=2,dp_shard=4,order=cp-tp-dp-pp", part, 1));
    // Neighbouring stages on one node, and on two: that is a matter of transfers.
    EXPECT_TRUE(same("pp=4,cp=2,dp_shard=8", "pp=4,cp=2,dp_shard=8,order=tp-cp-pp-dp", part, 1));
  }
  // The first two stages are on one node, and the third one on the next.
  const char *const far = "pp=4,cp=2,dp_shard=8", *const near = "pp=4,cp=2,dp_shard=8,order=tp-cp-pp-dp";
  EXPECT_FALSE(same(far, near, StepPart::send_forward, 0));
  EXPECT_FALSE(same(far, near, StepPart::send_backward, 1));
  EXPECT_TRUE(same(far, near, StepPart::send_forward, 1));
  // Neighbours share a NIC, or a switch that transfers go through.
  const PlanQuestion as_it_was = question_;
  const auto differ = [&] {
    return !same("pp=4,cp=2,tp=2,dp_shard=4", "pp=4,cp=2,tp=2,dp_shard=4,order=cp-tp-dp-pp",
                 StepPart::forward, 1);
  };
  question_.cluster.network.gpus_per_nic = 2;
  EXPECT_TRUE(differ());
  question_ = as_it_was;
  question_.cluster.node.nvlink_domain = 1, question_.cluster.node.nvlink_gbps = 0;
  EXPECT_TRUE(differ());
  question_ = as_it_was;
  for (const StepPart part : {StepPart::forward, StepPart::backward, StepPart::update}) {
    EXPECT_TRUE(need_the_same("pp=4,cp=2,dp_shard=8", "pp=4,cp=2,dp_shard=8,order=tp-dp-cp-pp", part, 1));
    EXPECT_TRUE(need_the_same("pp=4,cp=2,dp_shard=8", "pp=4,cp=2,dp_shard=8,order=tp-cp-pp-dp", part, 1));
    EXPECT_FALSE(need_the_same("pp=4,cp=2,dp_shard=8", "pp=4,dp_shard=16", part, 1));
  }
}

TEST_F(PartKeyOf, UpdatesShareAllButWhereParametersAre) {
  EXPECT_TRUE(same("tp=2,dp_shard=8", "tp=2,dp_shard=8,micro_batch=4,recompute=full,loss_chunks=4",
                   StepPart::update, 0));
  EXPECT_FALSE(same("tp=2,dp_shard=8", "tp=2,dp_shard=4,dp_replicate=2", StepPart::update, 0));
  EXPECT_FALSE(same("tp=2,dp_shard=8", "tp=2,dp_shard=8,zero=1", StepPart::update, 0));
}

}  // namespace
}  // namespace cp::sim
