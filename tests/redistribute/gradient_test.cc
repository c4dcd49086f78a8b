// Gradients: the backward rows of oracle B by PyTorch's table, and the duals of contract 10. That the adjoint
// rule is the exact transpose is a property test (tests/property/redistribute_data_test.cc).
#include "shared/redistribute/gradient.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "shared/plan/check.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/mesh/mesh_testing.h"
#include "tests/redistribute/chains.h"
#include "tests/support/shard_data.h"

namespace cp::testing {
namespace {

// The collectives of the first rank's plan: "all_gather", "" for none.
std::string collectives_in(const Redistribution& redistribution) {
  std::vector<std::string_view> names;
  const Plan plan = lower(redistribution, redistribution.source.mesh.ranks().front());
  for (const StepRef& ref : steps_of(plan)) {
    if (is_collective(*ref.step)) names.push_back(operation_name(ref.step->work));
  }
  return join(names, " ");
}

GradientOptions by_rule(GradientRule rule) {
  GradientOptions options;
  options.rule = rule;
  return options;
}

struct GradientRow {
  const char* row;
  Shape shape;
  const char *from, *to;
  const char *forward, *backward;  // collectives
  const char *grad_out, *grad_in;  // layouts
};

void expect_row(const GradientRow& row, GradientRule rule) {
  const Mesh mesh = Mesh::parse("m=4");
  const auto layout = [&](const char* text) { return layout_by_placements(mesh, text, row.shape); };
  const Redistribution forward = plan_redistribution(layout(row.from), layout(row.to));
  const Redistribution backward =
      plan_gradient(layout(row.from), layout(row.to), by_rule(rule)).redistribution;
  EXPECT_EQ(collectives_in(forward), row.forward);
  EXPECT_EQ(collectives_in(backward), row.backward);
  EXPECT_EQ(backward.source, layout(row.grad_out));
  EXPECT_EQ(backward.target, layout(row.grad_in));
  EXPECT_NO_THROW(sim::run_redistribution(forward));
  EXPECT_NO_THROW(sim::run_redistribution(backward));
}

const auto kRowName = [](const auto& row) {
  return std::string(row.param.row) + "_" + std::to_string(row.index);
};

class ReplicatedGradient : public ::testing::TestWithParam<GradientRow> {};
TEST_P(ReplicatedGradient, HasTheCollectivesOfTheTable) { expect_row(GetParam(), GradientRule::replicated); }

INSTANTIATE_TEST_SUITE_P(DTensor, ReplicatedGradient,
                         ::testing::Values(GradientRow{"B1", {12, 3}, "S0", "R", "all_gather", "", "R", "S0"},
                                           GradientRow{"B1", {13, 3}, "S0", "R", "all_gather", "", "R", "S0"},
                                           GradientRow{"B1", {14, 3}, "S0", "R", "all_gather", "", "R", "S0"},
                                           GradientRow{"B2", {3, 12}, "S1", "R", "all_gather", "", "R", "S1"},
                                           GradientRow{"B2", {3, 13}, "S1", "R", "all_gather", "", "R", "S1"},
                                           GradientRow{"B2", {3, 14}, "S1", "R", "all_gather", "", "R", "S1"},
                                           GradientRow{"B3", {12, 3}, "R", "R", "", "", "R", "R"},
                                           GradientRow{"B4", {12, 3}, "R", "S0", "", "all_gather", "S0", "R"},
                                           GradientRow{"B4", {13, 3}, "R", "S0", "", "all_gather", "S0", "R"},
                                           GradientRow{"B4", {14, 3}, "R", "S0", "", "all_gather", "S0", "R"},
                                           GradientRow{"B4", {3, 13}, "R", "S1", "", "all_gather", "S1", "R"},
                                           GradientRow{"B5", {12, 3}, "P", "R", "all_reduce", "", "R", "R"},
                                           GradientRow{"B6", {12, 3}, "P", "P", "", "", "P", "P"}),
                         kRowName);

// PyTorch has no such table; the rows follow from the duals.
class AdjointGradient : public ::testing::TestWithParam<GradientRow> {};
TEST_P(AdjointGradient, LeadsBetweenTheDuals) { expect_row(GetParam(), GradientRule::adjoint); }

INSTANTIATE_TEST_SUITE_P(
    Contract10, AdjointGradient,
    ::testing::Values(
        GradientRow{
            "gather_is_scattered_sums", {12, 3}, "S0", "R", "all_gather", "reduce_scatter", "P", "S0"},
        GradientRow{"slice_is_parts", {12, 3}, "R", "S0", "", "", "S0", "P"},
        GradientRow{"copies_are_parts", {12, 3}, "R", "R", "", "", "P", "P"},
        GradientRow{"all_reduce_is_all_reduce", {12, 3}, "P", "R", "all_reduce", "all_reduce", "P", "R"},
        GradientRow{
            "scattered_sums_are_gathers", {12, 3}, "P", "S0", "reduce_scatter", "all_gather", "S0", "R"},
        GradientRow{"parts_are_copies", {12, 3}, "P", "P", "", "", "R", "R"},
        GradientRow{"transposed_back", {12, 8}, "S0", "S1", "all_to_all", "all_to_all", "S1", "S0"}),
    kRowName);

// ---- duals ----

TEST(GradientDual, ExchangesReplicateAndPartialAndKeepsShards) {
  const Mesh mesh = Mesh::parse("a=2,b=2,c=2");
  const Layout layout = parse_layout("S(0,head_tail),R,P(sum)", mesh, {8, 3}, DType::bf16);
  const Layout expected = parse_layout("S(0,head_tail),P(sum),R", mesh, {8, 3}, DType::bf16);
  EXPECT_EQ(dual(layout), expected);
  EXPECT_EQ(dual(dual(layout)), layout);
}

TEST(GradientDual, OfAnAverageIsReplicate) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  EXPECT_EQ(dual(parse_layout("P(avg),P(sum)", mesh, {8}, DType::f32)),
            parse_layout("R,R", mesh, {8}, DType::f32));
}

TEST(GradientDual, KeepsTheOrderOfAxes) {
  const Layout layout = parse_layout("S(0)[1],S(0)[0]", Mesh::parse("a=2,b=2"), {9}, DType::f32);
  EXPECT_EQ(dual(layout), layout);
}

TEST(GradientDual, RefusesWhatIsNoLinearMap) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  for (const char* op : {"min", "max", "product"}) {
    const Layout partial = parse_layout(str("P(", op, "),S(0)"), mesh, {8}, DType::f32);
    const Layout whole = parse_layout("R,S(0)", mesh, {8}, DType::f32);
    const std::string named = str("P(", op, ")");
    expect_refused([&] { dual(partial); }, {named, "no gradient", "P(sum)"});
    for (const GradientRule rule : {GradientRule::adjoint, GradientRule::replicated}) {
      expect_refused([&] { plan_gradient(partial, whole, by_rule(rule)); }, {named, "no gradient"});
      expect_refused([&] { plan_gradient(partial, partial, by_rule(rule)); }, {named, "no gradient"});
    }
  }
}

TEST(GradientLayouts, KeepAPartialThatStaysAndReplicateOneThatIsReduced) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const auto layout = [&](const char* text) { return layout_by_placements(mesh, text, {8, 8}); };
  const GradientLayouts layouts = gradient_layouts(layout("P,P"), layout("P,S0"), GradientRule::replicated);
  EXPECT_EQ(layouts.grad_out, layout("P,S0"));
  EXPECT_EQ(layouts.grad_in, layout("P,R"));
}

// ---- averages ----

struct Average {
  const char *from, *to;
  double scale;
};

TEST(GradientScale, IsOneOverTheRanksThatWereAveraged) {
  const Mesh mesh = Mesh::parse("a=2,b=4");
  for (const Average& row : {Average{"P(avg),R", "R,R", 1.0 / 2}, Average{"P(avg),P(avg)", "S(0),R", 1.0 / 8},
                             Average{"P(avg),P(avg)", "R,P(avg)", 1.0 / 2},
                             Average{"P(avg),P(sum)", "R,R", 1.0 / 2}, Average{"P(avg),R", "P(avg),S(0)", 1},
                             Average{"P(sum),P(sum)", "R,R", 1}, Average{"S(0),R", "R,R", 1}}) {
    const auto layout = [&](const char* text) { return parse_layout(text, mesh, {8, 3}, DType::f32); };
    EXPECT_EQ(plan_gradient(layout(row.from), layout(row.to)).scale, row.scale)
        << row.from << " -> " << row.to;
    EXPECT_EQ(plan_gradient(layout(row.from), layout(row.to), by_rule(GradientRule::replicated)).scale, 1)
        << row.from << " -> " << row.to;
  }
}

TEST(GradientScale, CountsAllAveragesOnAnotherMesh) {
  const Layout from = parse_layout("P(avg),P(sum)", Mesh::parse("a=2,b=4"), {8}, DType::f32);
  const Layout to = parse_layout("S(0)", Mesh::parse("c=4"), {8}, DType::f32);
  EXPECT_EQ(plan_gradient(from, to).scale, 1.0 / 2);
}

// ---- scales ----

struct Scaled {
  const char *from, *to;
  int num_ranks;  // of the group that splits or gathers
};

// MindSpeed: the gradient times the number of ranks of the group, or divided by it.
TEST(GradScale, IsByTheRanksAlongTheAxesThatSplitOrGather) {
  const Mesh mesh = Mesh::parse("a=2,b=3,c=1");
  for (const Scaled& row :
       {Scaled{"S(0),R,R", "R,R,R", 2}, Scaled{"R,R,R", "R,S(0,balanced),R", 3},
        Scaled{"S(0),S(0),R", "R,R,R", 6}, Scaled{"R,R,S(1)", "S(0,head_tail),S(0),S(1)", 6},
        Scaled{"S(0),R,R", "R,S(0),R", 6}, Scaled{"S(0),S(1),R", "R,S(0),R", 2},
        Scaled{"P(sum),S(1),R", "R,R,R", 3}, Scaled{"R,R,S(0)", "R,R,R", 1}}) {
    const auto layout = [&](const char* text) { return parse_layout(text, mesh, {12, 6}, DType::f32); };
    const Layout from = layout(row.from), to = layout(row.to);
    EXPECT_EQ(grad_scale_factor(GradScale::up, from, to), row.num_ranks) << row.from << " -> " << row.to;
    EXPECT_EQ(grad_scale_factor(GradScale::down, from, to), 1.0 / row.num_ranks)
        << row.from << " -> " << row.to;
    EXPECT_EQ(grad_scale_factor(GradScale::none, from, to), 1);
  }
}

TEST(GradScale, NeedsAGroupOfOneMesh) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const auto layout = [&](const char* text) { return parse_layout(text, mesh, {8, 8}, DType::f32); };
  expect_refused([&] { grad_scale_factor(GradScale::up, layout("S(0),R"), layout("S(1),R")); },
                 {"the gradient scale up", "no axis goes from R to S", "S(0),R -> S(1),R", "use none"});
  expect_refused([&] { grad_scale_factor(GradScale::down, layout("P(sum),R"), layout("R,R")); },
                 {"the gradient scale down", "use none"});
  const Layout other = parse_layout("R", Mesh::parse("c=4"), {8, 8}, DType::f32);
  expect_refused([&] { grad_scale_factor(GradScale::up, layout("S(0),R"), other); },
                 {"from a=2,b=2 to c=4", "the same mesh"});
  EXPECT_EQ(grad_scale_factor(GradScale::none, layout("S(0),R"), other), 1);
}

TEST(GradScale, MultipliesWhatTheRuleAlreadyDoes) {
  const Mesh mesh = Mesh::parse("a=4,b=2");
  const Layout from = parse_layout("P(avg),S(0)", mesh, {8}, DType::f32),
               to = parse_layout("R,R", mesh, {8}, DType::f32);
  GradientOptions options;
  options.scale = grad_scale_factor(GradScale::up, from, to);
  EXPECT_EQ(plan_gradient(from, to, options).scale, 2.0 / 4);
  options.rule = GradientRule::replicated;
  EXPECT_EQ(plan_gradient(from, to, options).scale, 2);
  options.scale = std::numeric_limits<double>::infinity();
  expect_refused([&] { plan_gradient(from, to, options); }, {"multiplied by inf", "finite"});
  options.scale = 2;
  const Layout whole = parse_layout("R,S(0)", mesh, {8}, DType::i32),
               rows = parse_layout("R,R", mesh, {8}, DType::i32);
  expect_refused([&] { plan_gradient(whole, rows, options); }, {"i32", "floating"});
}

// The last step of every plan of a rank that holds anything, with a label, and in the digest of what the plan
// is made from.
TEST(ScaledPlan, EndsWithTheScaleOfWhatItWrote) {
  const Mesh mesh = Mesh::parse("m=4");
  const Redistribution r =
      plan_redistribution(layout_by_placements(mesh, "R", {3, 2}), layout_by_placements(mesh, "S0", {3, 2}));
  const std::vector<Plan> plain = lower_all(r), scaled = lower_all_scaled(r, 0.25),
                          one = lower_all_scaled(r, 1);
  EXPECT_EQ(one, plain);
  ASSERT_EQ(scaled.size(), 4U);
  for (const Plan& plan : scaled) {
    const auto rank = static_cast<std::size_t>(plan.self);
    EXPECT_NE(plan.inputs, plain[rank].inputs);
    EXPECT_NE(plan.inputs, lower_scaled(r, 0.5, plan.self).inputs);
    EXPECT_EQ(peak_bytes(plan), peak_bytes(plain[rank]));
    const std::vector<StepRef> steps = steps_of(plan);
    if (local_numel(r.target, plan.self) == 0) {  // rank 3
      EXPECT_EQ(plan.self, 3);
      EXPECT_TRUE(steps.empty());
      continue;
    }
    ASSERT_EQ(steps.size(), steps_of(plain[rank]).size() + 1);
    EXPECT_EQ(steps.back().step->label, kScaleLabel);
    const auto& scale = std::get<Scale>(std::get<Kernel>(steps.back().step->work));
    EXPECT_EQ(scale.factor, 0.25);
    EXPECT_EQ(scale.data, flat_view(kRedistributeOutput, 0, 2));
  }
}

TEST(ScaledPlan, TakesALocalStepsTimeOnTheRankThatHoldsMost) {
  const Redistribution r = plan_redistribution(layout_by_placements(Mesh::parse("m=4"), "R", {5, 100}),
                                               layout_by_placements(Mesh::parse("m=4"), "S0", {5, 100}));
  CostModel cost;
  cost.local_latency_us = 7, cost.memory_gbps = 2;
  // Two rows of 100 f32 are read and written: 1600 bytes at 2 bytes a nanosecond.
  EXPECT_DOUBLE_EQ(scale_time_us(r, 0.5, cost), 7 + 0.8);
  EXPECT_EQ(scale_time_us(r, 1, cost), 0);
  const Layout empty = layout_by_placements(Mesh::parse("m=4"), "R", {0});
  EXPECT_EQ(scale_time_us(plan_redistribution(empty, empty), 0.5, cost), 0);
}

// ---- B8: how a Replicate becomes a Partial ----

void expect_divided(const char* mesh_text, const char* from, const char* to) {
  const Mesh mesh = Mesh::parse(mesh_text);
  RedistributeOptions options;
  options.partial_rule = PartialRule::divide;
  const Layout source = layout_by_placements(mesh, from, {12, 3});
  const Redistribution planned =
      plan_redistribution(source, layout_by_placements(mesh, to, {12, 3}), options);
  EXPECT_EQ(collectives_in(planned), "");
  const auto value = [](std::int64_t element) { return static_cast<double>(element - 7); };
  for (const auto& [rank, shard] : run_plans(lower_all(planned), make_shards(source, value))) {
    ASSERT_EQ(shard.size(), 36U);
    for (std::size_t i = 0; i < shard.size(); ++i)
      EXPECT_EQ(shard[i], value(static_cast<std::int64_t>(i)) / 4) << "rank " << rank;
  }
}
TEST(GradientToPartial, B8DividesAmongTheRanks) {
  expect_divided("m=4", "R", "P");
  expect_divided("a=2,b=2", "R,R", "P,P");
}

TEST(GradientToPartial, FirstRankKeepsIntegersExactly) {
  const Mesh mesh = Mesh::parse("m=4");
  RedistributeOptions options;
  const Layout source = layout_by_placements(mesh, "R", {5}, DType::i64);
  const Redistribution planned =
      plan_redistribution(source, layout_by_placements(mesh, "P", {5}, DType::i64), options);
  const auto value = [](std::int64_t element) { return static_cast<double>(element + 3); };
  for (const auto& [rank, shard] : run_plans(lower_all(planned), make_shards(source, value))) {
    for (std::size_t i = 0; i < shard.size(); ++i)
      EXPECT_EQ(shard[i], rank == 0 ? value(static_cast<std::int64_t>(i)) : 0) << "rank " << rank;
  }
}

// B7: a gradient that comes in as parts of a replicated value's is reduced by a redistribution of its own.
TEST(GradientToPartial, B7PartsOfAReplicatedValuesGradientAreReducedOnce) {
  const Mesh mesh = Mesh::parse("m=4");
  EXPECT_EQ(collectives_in(plan_redistribution(layout_by_placements(mesh, "P", {12, 3}),
                                               layout_by_placements(mesh, "R", {12, 3}))),
            "all_reduce");
}

// ---- B9 to B13: what is legal ----

struct Legality {
  const char* row;
  const char *from, *to;
  bool allowed;
  const char* reason;
};

TEST(RedistributeLegality, OfPartialTargets) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  // B9 and B11 are errors in PyTorch's public interface, which has the moves inside; here they are moves like
  // others.
  for (const Legality& row :
       {Legality{"B9", "R,R", "P(sum),R", true, ""}, Legality{"B9", "R,R", "R,P(max)", true, ""},
        Legality{"B9", "R,R", "P(product),P(product)", true, ""}, Legality{"B9", "R,R", "P(avg),R", true, ""},
        Legality{"B9", "S(0),S(0)", "P(min),P(min)", true, ""},
        Legality{"B9", "S(1),S(0)", "P(sum),P(sum)", true, ""},
        Legality{"B9", "S(0),P(sum)", "P(sum),S(1)", true, ""},
        Legality{"B10", "P(sum),S(0)", "P(sum),S(0)", true, ""},
        Legality{"B10", "P(sum),S(0)", "P(sum),S(1)", true, ""},
        Legality{"B10", "S(0),P(sum)", "R,P(sum)", true, ""},
        Legality{"B10", "S(0),P(product)", "R,P(product)", true, ""},
        Legality{"B11", "S(0),R", "S(0),P(sum)", true, ""}, Legality{"B11", "S(0),R", "R,P(sum)", true, ""},
        Legality{"B11", "S(0),S(1)", "R,P(sum)", true, ""},
        Legality{"B11", "S(0),P(product)", "R,P(sum)", false, "P(product) to P(sum)"},
        Legality{"B12", "P(sum),R", "P(avg),R", false, "P(sum) to P(avg)"}}) {
    const Layout from = parse_layout(row.from, mesh, {12, 8}, DType::f32);
    const Layout to = parse_layout(row.to, mesh, {12, 8}, DType::f32);
    if (row.allowed) {
      EXPECT_NO_THROW(sim::run_redistribution(plan_redistribution(from, to))) << row.row;
    } else {
      SCOPED_TRACE(row.row);
      expect_refused([&] { plan_redistribution(from, to); }, {"cannot redistribute", row.reason});
    }
  }
}

TEST(RedistributeLegality, B13OnlySumAndAverageMix) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  expect_refused([&] { parse_layout("P(sum),P(max)", mesh, {4}, DType::f32); }, {"sum", "max"});
  EXPECT_NO_THROW(parse_layout("P(sum),P(avg)", mesh, {4}, DType::f32));
}

// ---- B18: types ----

// Checks that a rank's plan casts to `travel` before its first collective, carries nothing else, and ends in
// `result`.
void expect_travels_as(const Redistribution& planned, DType travel, DType result) {
  EXPECT_EQ(planned.travel_dtype, travel);
  for (const Plan& plan : lower_all(planned)) {
    DType now = plan.buffers[kRedistributeInput].dtype;
    int collectives = 0;
    for (const StepRef& ref : steps_of(plan)) {
      for (const Access& access : accesses(ref.step->work)) {
        const DType dtype = plan.buffers[static_cast<std::size_t>(access.view->buffer)].dtype;
        if (is_collective(*ref.step)) {
          EXPECT_EQ(dtype, travel) << ref.step->label;
        }
        if (access.writes) now = dtype;
      }
      collectives += is_collective(*ref.step) ? 1 : 0;
    }
    EXPECT_EQ(collectives, 1);
    EXPECT_EQ(now, result);
    EXPECT_EQ(plan.buffers[kRedistributeOutput].dtype, result);
  }
}

struct TypedRow {
  const char *from, *to;
  DType forward, backward;
};

TEST(GradientDTypes, B18CastsBeforeCommunicationAndReturnsToTheOriginal) {
  const Mesh mesh = Mesh::parse("m=4");
  for (const TypedRow& row :
       {TypedRow{"S0", "R", DType::bf16, DType::f16}, TypedRow{"S0", "S1", DType::bf16, DType::f32},
        TypedRow{"P", "S0", DType::f16, DType::bf16}, TypedRow{"P", "R", DType::bf16, DType::bf16}}) {
    SCOPED_TRACE(str(row.from, " -> ", row.to));
    const Layout from = layout_by_placements(mesh, row.from, {12, 8}, DType::f32);
    const Layout to = layout_by_placements(mesh, row.to, {12, 8}, row.forward);
    const Redistribution forward = plan_redistribution(from, to);
    expect_travels_as(forward, row.forward, row.forward);
    EXPECT_NO_THROW(sim::run_redistribution(forward));
    GradientOptions options;
    options.backward_dtype = row.backward;
    const Redistribution backward = plan_gradient(from, to, options).redistribution;
    EXPECT_EQ(backward.source.dtype, row.forward);
    expect_travels_as(backward, row.backward, DType::f32);
    EXPECT_NO_THROW(sim::run_redistribution(backward));
    // As many collectives as without conversions.
    Layout plain = to;
    plain.dtype = DType::f32;
    EXPECT_EQ(collectives_in(forward), collectives_in(plan_redistribution(from, plain)));
    EXPECT_EQ(collectives_in(backward), collectives_in(plan_gradient(from, plain).redistribution));
  }
}

TEST(GradientDTypes, B18ReplicatedRuleToo) {
  const Mesh mesh = Mesh::parse("m=4");
  GradientOptions options = by_rule(GradientRule::replicated);
  options.backward_dtype = DType::f16;
  const Redistribution backward =
      plan_gradient(layout_by_placements(mesh, "R", {13, 3}, DType::f32),
                    layout_by_placements(mesh, "S0", {13, 3}, DType::bf16), options)
          .redistribution;
  expect_travels_as(backward, DType::f16, DType::f32);
  EXPECT_NO_THROW(sim::run_redistribution(backward));
}

// The type of the forward result travels unless told otherwise.
TEST(GradientDTypes, BackwardDefaultsToTheTargetsType) {
  const Mesh mesh = Mesh::parse("m=4");
  expect_travels_as(plan_gradient(layout_by_placements(mesh, "S0", {12}, DType::f32),
                                  layout_by_placements(mesh, "R", {12}, DType::bf16))
                        .redistribution,
                    DType::bf16, DType::f32);
}

}  // namespace
}  // namespace cp::testing
