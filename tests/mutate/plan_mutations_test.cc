// Damage to plans: every kind finds its places, changes something there and says what, and does the same
// again.
#include "sim/fuzz/mutate/plan_mutations.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "shared/redistribute/lower.h"
#include "sim/fuzz/mutate/mutation_sites.h"
#include "tests/mutate/damaged_jobs.h"
#include "tests/property/example_plans.h"

namespace cp::testing {
namespace {

using sim::all_mutations;
using sim::mutate;
using sim::Mutation;
using sim::mutation_places;
using sim::MutationInfo;
using sim::MutationKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Plans = std::vector<Plan>;

Plans ring(AttentionPass pass, DType dtype = DType::f32) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 13;
  request.problem.q_heads = 2;
  request.problem.head_dim = request.problem.v_head_dim = 4;
  request.problem.dtype = dtype;
  request.problem.causal = true;
  request.ranks = {0, 1, 2};
  return attention_plans(request, pass);
}
Plans all_gathered(AttentionPass pass) {  // with more parts than one merge takes
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 16;
  request.problem.head_dim = request.problem.v_head_dim = 8;
  request.problem.dtype = DType::bf16;
  request.problem.causal = true;
  request.ranks = {0, 1};
  request.strategy.balance = parse_balance("striped:2");
  return attention_plans(request, pass, gpu_target("sm90"));
}
Plans redistribution(std::string_view from, std::string_view to) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  return lower_all(plan_redistribution(parse_layout(from, mesh, {8, 6}, DType::f32),
                                       parse_layout(to, mesh, {8, 6}, DType::f32)));
}

std::vector<Plans> all_plans() {
  std::vector<Plans> all = {ring(AttentionPass::forward),
                            ring(AttentionPass::backward, DType::bf16),
                            all_gathered(AttentionPass::forward),
                            all_gathered(AttentionPass::backward),
                            redistribution("P(sum),S(0)", "S(0),R"),
                            redistribution("S(0,sizes:5/3),S(1)", "S(1),S(0)")};
  for (const Example& example : examples()) all.push_back(example.make());
  return all;
}

TEST(PlanMutations, EveryKindHasPlacesSomewhere) {
  const std::vector<Plans> all = all_plans();
  for (const MutationInfo& info : all_mutations()) {
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Plans& plans) {
      return mutation_places(plans, info.kind) > 0;
    })) << info.name;
  }
}

TEST(PlanMutations, EachPlaceIsChangedAndSaysWhere) {
  constexpr std::int64_t kPlaces = 40;
  for (const Plans& right : all_plans()) {
    for (const MutationInfo& info : all_mutations()) {
      const std::int64_t places = mutation_places(right, info.kind);
      for (std::int64_t place = 0; place < std::min(places, kPlaces); ++place) {
        Plans plans = right;
        const std::optional<Mutation> done = mutate(plans, info.kind, place, 3);
        ASSERT_TRUE(done.has_value()) << info.name;
        EXPECT_NE(plans, right) << info.name << ": " << done->text;
        EXPECT_EQ(done->kind, info.kind);
        EXPECT_THAT(done->text, StartsWith("rank "));
        EXPECT_THAT(done->text, HasSubstr(": "));
      }
    }
  }
}

TEST(PlanMutations, EqualNumbersGiveEqualDamage) {
  for (const Plans& right : all_plans()) {
    for (const MutationInfo& info : all_mutations()) {
      for (const std::uint64_t seed : {0U, 1U, 99U}) {
        Plans once = right, again = right;
        const std::optional<Mutation> first = mutate(once, info.kind, 7, seed);
        const std::optional<Mutation> second = mutate(again, info.kind, 7, seed);
        ASSERT_EQ(first.has_value(), second.has_value());
        if (!first) continue;
        EXPECT_EQ(first->text, second->text);
        EXPECT_EQ(once, again);
      }
    }
  }
}

// On every machine, in every build: what was drawn is known by heart.
TEST(PlanMutations, DamageIsTheSameOnEveryMachine) {
  const auto text = [](MutationKind kind, std::int64_t place, std::uint64_t seed) {
    Plans plans = exchange_ring(3, 4);
    return mutate(plans, kind, place, seed).value().text;
  };
  EXPECT_EQ(text(MutationKind::swap_peers, 0, 1), "rank 0, step 1 exchange \"hop\": sends 0, peer: 1 -> 2");
  EXPECT_EQ(text(MutationKind::shift_offset, 1, 2), "rank 0, step 0 copy \"own\": out, offset: 0 -> 1");
  EXPECT_EQ(text(MutationKind::change_dtype, 2, 3), "rank 0: buffer slots, dtype: f32 -> bf16");
  EXPECT_EQ(text(MutationKind::change_reduction, 0, 4), "rank 0, step 2 accumulate \"add\": op: sum -> max");
  EXPECT_EQ(text(MutationKind::change_count, 3, 5),
            "rank 0, step 1 exchange \"hop\": recvs 0, dimension 0: 4 -> 5");
  EXPECT_EQ(text(MutationKind::reorder_steps, 0, 6),
            "rank 0, step 0 copy \"own\": trades places with rank 0, step 2 accumulate \"add\"");
}

TEST(PlanMutations, APlaceBeyondTheLastCountsFromTheFirstAgain) {
  const Plans right = ring(AttentionPass::forward);
  const std::int64_t places = mutation_places(right, MutationKind::drop_step);
  ASSERT_GT(places, 1);
  std::set<std::string> texts;
  for (std::int64_t place = 0; place < places; ++place) {
    Plans plans = right, later = right;
    const std::string text = mutate(plans, MutationKind::drop_step, place, 0)->text;
    texts.insert(text);
    EXPECT_EQ(text, mutate(later, MutationKind::drop_step, place + 3 * places, 0)->text);
  }
  EXPECT_EQ(static_cast<std::int64_t>(texts.size()), places);  // each is another one
}

TEST(PlanMutations, WithoutAPlaceNothingIsChanged) {
  const Plans right = ring(AttentionPass::forward);
  Plans plans = right;
  EXPECT_EQ(mutate(plans, MutationKind::swap_dk_dv, 0, 0), std::nullopt);
  EXPECT_EQ(plans, right);
}

TEST(PlanMutations, NamesAreReadBackAndAnUnknownOneGetsTheNearest) {
  for (const MutationInfo& info : all_mutations()) EXPECT_EQ(sim::parse_mutation_kind(info.name), info.kind);
  try {
    (void)sim::parse_mutation_kind("drop_stepp");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean drop_step?"));
  }
}

// What the bookkeeping of moved steps relies on: the declared uses of right plans are those of their steps.
TEST(PlanMutations, UsesAreThoseOfTheBuilder) {
  for (const Plans& right : all_plans()) {
    for (const Plan& plan : right) {
      Plan again = plan;
      sim::refit_uses(again);
      EXPECT_EQ(again, plan);
    }
  }
}

TEST(PlanMutations, DoubledAndRemovedAgainIsAsItWas) {
  for (const Plans& right : all_plans()) {
    for (const Plan& plan : right) {
      for (StepId id = 0; id < static_cast<StepId>(steps_of(plan).size()); ++id) {
        Plan again = plan;
        sim::double_step(again, id);
        ASSERT_EQ(steps_of(again).size(), steps_of(plan).size() + 1);
        // The second of the two has what waited for the step; the first one waits for what the step did.
        sim::step_at(again, id + 1).after = sim::step_at(again, id).after;
        sim::remove_step(again, id);
        EXPECT_EQ(again, plan) << "step " << id;
      }
    }
  }
}

Copy copy_of(BufferId in, BufferId out) { return {flat_view(in, 0, 4), flat_view(out, 0, 4)}; }

// Four copies from the input through three temporaries, on two streams.
Plan chain() {
  PlanBuilder builder(0, host_target());
  const StreamId even = builder.stream("even"), odd = builder.stream("odd");
  std::vector<BufferId> buffers = {builder.input("in", DType::f32, 4)};
  for (const char* name : {"a", "b", "c"}) buffers.push_back(builder.temporary(name, DType::f32, 4));
  buffers.push_back(builder.output("out", DType::f32, 4));
  for (std::size_t i = 0; i < 4; ++i)
    builder.add(i % 2 == 0 ? even : odd, Kernel{copy_of(buffers[i], buffers[i + 1])});
  return std::move(builder).build({});
}
std::vector<StepId> waited_for(Plan& plan, StepId id) {
  std::vector<StepId> steps;
  for (const Edge& edge : sim::step_at(plan, id).after) steps.push_back(edge.step);
  return steps;
}

std::vector<StepId> uses(const Plan& plan, std::size_t buffer) {
  return {plan.buffers[buffer].first_use, plan.buffers[buffer].last_use};
}

TEST(PlanMutations, EdgesAndUsesFollowTheStepsThatMove) {
  Plan plan = chain();
  ASSERT_THAT(waited_for(plan, 1), ElementsAre(0));
  ASSERT_THAT(waited_for(plan, 2), ElementsAre(1));
  ASSERT_THAT(waited_for(plan, 3), ElementsAre(2));
  sim::swap_steps(plan, 0, 2);  // now c = b, b = a, a = in, out = c
  EXPECT_THAT(waited_for(plan, 0), ElementsAre(1));
  EXPECT_THAT(waited_for(plan, 1), ElementsAre(2));
  EXPECT_THAT(waited_for(plan, 3), ElementsAre(0));
  EXPECT_THAT(uses(plan, 1), ElementsAre(1, 2));  // a
  EXPECT_THAT(uses(plan, 3), ElementsAre(0, 3));  // c

  plan = chain();
  sim::remove_step(plan, 1);
  EXPECT_THAT(waited_for(plan, 1), ::testing::IsEmpty());
  EXPECT_THAT(waited_for(plan, 2), ElementsAre(1));
  EXPECT_THAT(uses(plan, 1), ElementsAre(0, 0));

  plan = chain();
  sim::double_step(plan, 1);
  EXPECT_THAT(waited_for(plan, 1), ElementsAre(0));
  EXPECT_THAT(waited_for(plan, 3), ElementsAre(2));  // the second time
  EXPECT_EQ(plan.buffers[1].last_use, 2);
}

}  // namespace
}  // namespace cp::testing
