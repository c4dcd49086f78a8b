#include "shared/fully_shard/hsdp_param.h"

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/fully_shard/hsdp_runs.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;

using Part = HsdpReduction::Part;

HsdpOptions sum_over(std::vector<std::string> shard, std::vector<std::string> replicate = {},
                     std::vector<std::string> partial = {}) {
  HsdpOptions options;
  options.shard = std::move(shard), options.replicate = std::move(replicate),
  options.partial = std::move(partial);
  options.reduce = ReduceOp::sum;
  return options;
}

// The collectives of one rank: "all_gather fsdp=0/2".
std::vector<std::string> calls_of(const Plan& plan) {
  std::vector<std::string> calls;
  for (const StepRef& ref : steps_of(plan)) {
    if (!is_collective(*ref.step)) continue;
    const Group& group =
        plan.groups[static_cast<std::size_t>(group_of(std::get<Collective>(ref.step->work)))];
    calls.push_back(str(operation_name(ref.step->work), " ", join(group.ranks, "/")));
  }
  return calls;
}

std::string text(const Layout& layout) { return str(placements_to_string(layout), " ", name(layout.dtype)); }

// ---- layouts ----

TEST(HsdpLayouts, OfAPlainParameter) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=4");
  HsdpOptions options;
  options.shard = {"dp_shard"}, options.replicate = {"dp_replicate"};
  options.param_dtype = DType::bf16, options.reduce_dtype = DType::f32;
  const HsdpParam param(replicated_layout(mesh, {10, 3}, DType::f32), options);
  EXPECT_EQ(text(param.sharded()), "R,S(0) f32");
  EXPECT_EQ(text(param.unsharded()), "R,R bf16");
  EXPECT_EQ(text(param.gradient()), "P(avg),P(avg) bf16");
  EXPECT_EQ(text(param.accumulated()), "P(avg),P(avg) f32");
  EXPECT_EQ(text(param.scattered()), "P(avg),S(0) f32");
  EXPECT_EQ(text(param.reduced()), "R,S(0) f32");
}

TEST(HsdpLayouts, TheReduceDtypeIsTheParametersUnlessGiven) {
  HsdpOptions options = sum_over({"dp"});
  options.param_dtype = DType::bf16;
  const HsdpParam param(replicated_layout(Mesh::parse("dp=2"), {4}, DType::f32), options);
  EXPECT_EQ(text(param.accumulated()), "P(sum) bf16");
  EXPECT_EQ(text(param.reduced()), "S(0) f32");
}

TEST(HsdpLayouts, ASmallParameterIsReplicatedAndItsGradientAllReduced) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=2");
  HsdpOptions options = sum_over({"dp_shard"}, {"dp_replicate"});
  options.min_numel = 7;
  const HsdpParam small(replicated_layout(mesh, {6}, DType::f32), options);
  EXPECT_FALSE(small.is_split());
  EXPECT_EQ(text(small.sharded()), "R,R f32");
  EXPECT_THAT(small.all_reduce_axes(), ElementsAre(0, 1));
  EXPECT_THAT(calls_of(small.unshard_plan(0)), IsEmpty());
  EXPECT_THAT(calls_of(small.reduce_plan(0, {})), ElementsAre("all_reduce 0/1/2/3"));
  EXPECT_TRUE(HsdpParam(replicated_layout(mesh, {7}, DType::f32), options).is_split());
}

TEST(HsdpLayouts, AnAliasStandsForItsAxes) {
  const std::vector<std::string> both = {"dp_shard", "cp"};
  const Mesh mesh = Mesh::parse("dp_shard=2,cp=2,tp=2").flatten(both, "fsdp");
  const HsdpParam param(replicated_layout(mesh, {8}, DType::f32), sum_over({"fsdp"}));
  EXPECT_EQ(text(param.sharded()), "S(0),S(0),R f32");
  EXPECT_THAT(calls_of(param.unshard_plan(1)), ElementsAre("all_gather 1/3/5/7"));
}

// ---- parameters that are distributed already ----

TEST(HsdpDistributed, CompatibleTheMeshHasTheDataParallelAxes) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const HsdpParam param(parse_layout("R,S(0)", mesh, {8, 3}, DType::f32), sum_over({"dp"}));
  // Data parallelism splits what tensor parallelism left: tp stays outermost.
  EXPECT_EQ(text(param.sharded()), "S(0)[1],S(0)[0] f32");
  EXPECT_EQ(text(param.unsharded()), "R,S(0) f32");
  EXPECT_EQ(indices(param.sharded(), 0, 2), (IndexSet{{2, 2, 2, 1}}));  // dp 1 of tp 0: rows 2 and 3
  EXPECT_THAT(calls_of(param.unshard_plan(1)), ElementsAre("all_gather 1/3"));
  EXPECT_THAT(calls_of(param.reduce_plan(1, {})), ElementsAre("reduce_scatter 1/3"));
}

TEST(HsdpDistributed, UnifiedTheMeshesAreJoined) {
  const Mesh world = Mesh::parse("pp=2,dp=2,tp=2");
  const Layout by_tp = parse_layout("S(1)", world.slice("tp", 6), {3, 8}, DType::f32);
  const Layout unified = unified_layout(world.slice("dp", 6), by_tp, 6);
  EXPECT_EQ(unified, parse_layout("R,S(1)", Mesh::parse("dp=2,tp=2@4/5/6/7"), {3, 8}, DType::f32));
  const HsdpParam param(unified, sum_over({"dp"}));
  EXPECT_EQ(text(param.sharded()), "S(0),S(1) f32");
  EXPECT_THAT(calls_of(param.unshard_plan(6)), ElementsAre("all_gather 4/6"));
}

TEST(HsdpDistributed, UnifiedKeepsTheOrderOfTheParametersAxes) {
  const Mesh world = Mesh::parse("dp=2,a=2,b=2");
  const std::vector<std::string> ab = {"a", "b"};
  const Layout layout = parse_layout("S(0)[1],S(0)[0]", world.slice(ab, 0), {8}, DType::f32);
  EXPECT_EQ(placements_to_string(unified_layout(world.slice("dp", 0), layout, 0)), "R,S(0)[1],S(0)[0]");
}

TEST(HsdpDistributed, PartialGradientsAreAddedUpOverTheirAxesToo) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=2,tp=2");
  const Layout norm = replicated_layout(mesh, {8}, DType::f32);
  const HsdpParam sums(norm, sum_over({"dp_shard"}, {"dp_replicate"}, {"tp"}));
  EXPECT_EQ(text(sums.gradient()), "P(sum),P(sum),P(sum) f32");
  EXPECT_THAT(calls_of(sums.reduce_plan(0, {})), ElementsAre("reduce_scatter 0/2", "all_reduce 0/1/4/5"));

  HsdpOptions options = sum_over({"dp_shard"}, {"dp_replicate"}, {"tp"});
  options.reduce = ReduceOp::avg;
  const HsdpParam means(norm, options);
  EXPECT_EQ(text(means.gradient()), "P(avg),P(avg),P(sum) f32");
  EXPECT_THAT(calls_of(means.reduce_plan(0, {})),
              ElementsAre("reduce_scatter 0/2", "all_reduce 0/4", "all_reduce 0/1"));

  // Not named: the gradient is the same on the ranks of tp, and stays so.
  const HsdpParam whole(norm, sum_over({"dp_shard"}, {"dp_replicate"}));
  EXPECT_EQ(text(whole.gradient()), "P(sum),P(sum),R f32");
  EXPECT_THAT(calls_of(whole.reduce_plan(0, {})), ElementsAre("reduce_scatter 0/2", "all_reduce 0/4"));
}

// Data parallelism over several axes of either kind: each of them is part of the reduction, whatever their
// order in mesh and options.
TEST(HsdpDistributed, GradientsAreReducedOverEveryReplicateAxis) {
  const auto reduces = [](const char* mesh, const HsdpOptions& options, Part part) {
    return calls_of(
        HsdpParam(replicated_layout(Mesh::parse(mesh), {8}, DType::f32), options).reduce_plan(0, {part}));
  };
  struct Row {
    const char* mesh;
    const char *scatter, *all_reduce;  // groups of rank 0
  };
  const Row rows[] = {{"r=2,q=2,s=2", "0/1", "0/2/4/6"},
                      {"q=2,s=2,r=2", "0/2", "0/1/4/5"},
                      {"s=2,r=2,q=2", "0/4", "0/1/2/3"},
                      {"r=2,s=2,q=3", "0/3", "0/1/2/6/7/8"}};
  for (const Row& row : rows) {
    for (const std::vector<std::string>& replicate :
         {std::vector<std::string>{"r", "q"}, std::vector<std::string>{"q", "r"}}) {
      HsdpOptions options = sum_over({"s"}, replicate);
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        SCOPED_TRACE(str(row.mesh, " over ", join(replicate), " with ", name(op)));
        options.reduce = op;
        const std::string scatter = str("reduce_scatter ", row.scatter),
                          all_reduce = str("all_reduce ", row.all_reduce);
        EXPECT_THAT(reduces(row.mesh, options, Part::both), ElementsAre(scatter, all_reduce));
        EXPECT_THAT(reduces(row.mesh, options, Part::scatter), ElementsAre(scatter));
        EXPECT_THAT(reduces(row.mesh, options, Part::all_reduce), ElementsAre(all_reduce));
      }
    }
  }
  // Two of each, and a parameter that is too small to be split.
  HsdpOptions options = sum_over({"s", "c"}, {"r", "q"}, {"t", "u"});
  const char* const mesh = "r=2,s=2,t=2,q=2,c=2,u=2";
  EXPECT_THAT(
      reduces(mesh, options, Part::both),
      ElementsAre("reduce_scatter 0/2/16/18", "all_reduce 0/1/4/5/8/9/12/13/32/33/36/37/40/41/44/45"));
  options.reduce = ReduceOp::avg;
  EXPECT_THAT(reduces(mesh, options, Part::all_reduce),
              ElementsAre("all_reduce 0/4/32/36", "all_reduce 0/1/8/9"));
  options.reduce = ReduceOp::sum, options.partial.clear(), options.min_numel = 9;
  EXPECT_THAT(reduces(mesh, options, Part::both),
              ElementsAre("all_reduce 0/2/4/6/16/18/20/22/32/34/36/38/48/50/52/54"));
}

TEST(HsdpLayouts, AnAliasOfReplicateAxesStandsForAllOfThem) {
  const std::vector<std::string> both = {"pod", "node"};
  const Mesh mesh = Mesh::parse("pod=2,node=2,s=2").flatten(both, "replicas");
  const HsdpParam param(replicated_layout(mesh, {8}, DType::f32), sum_over({"s"}, {"replicas"}));
  EXPECT_EQ(text(param.gradient()), "P(sum),P(sum),P(sum) f32");
  EXPECT_EQ(text(param.scattered()), "P(sum),P(sum),S(0) f32");
  EXPECT_THAT(param.all_reduce_axes(), ElementsAre(0, 1));
  EXPECT_THAT(calls_of(param.reduce_plan(1, {})), ElementsAre("reduce_scatter 0/1", "all_reduce 1/3/5/7"));
}

// ---- groups ----

// A mesh of any ranks and what is asked of it.
struct AnyParam {
  Layout layout;
  HsdpOptions options;
};

void showValue(const AnyParam& any, std::ostream& out) {
  const HsdpOptions& options = any.options;
  out << placements_to_string(any.layout) << " of " << join(any.layout.shape, "x") << " "
      << name(any.layout.dtype) << " on " << any.layout.mesh.to_string() << ": shard " << join(options.shard)
      << " along " << options.shard_dim << " " << to_string(options.split) << ", replicate "
      << join(options.replicate) << ", partial " << join(options.partial) << ", reduce "
      << name(options.reduce) << ", min_numel " << options.min_numel;
  if (options.param_dtype) out << ", param_dtype " << name(*options.param_dtype);
  if (options.reduce_dtype) out << ", reduce_dtype " << name(*options.reduce_dtype);
}

// Two axes of each kind that data parallelism knows, in any order of the mesh.
AnyParam make_param() {
  const auto size = [] { return *rc::gen::inRange(1, 4); };
  const auto pair = [] { return *rc::gen::inRange(1, 3); };
  std::vector<MeshAxis> axes = {{"r", size()}, {"q", pair()}, {"s", pair()}, {"c", pair()}, {"t", pair()}};
  std::mt19937 shuffle(*rc::gen::arbitrary<std::uint32_t>());
  // The tensor-parallel axis, which the placements below name, stays last.
  std::shuffle(axes.begin(), axes.end() - 1, shuffle);
  int world = 1;
  for (const MeshAxis& axis : axes) world *= axis.size;
  std::vector<Rank> ranks(static_cast<std::size_t>(world));
  for (int i = 0; i < world; ++i) ranks[static_cast<std::size_t>(i)] = i;
  std::shuffle(ranks.begin(), ranks.end(), shuffle);
  const Shape shape = {*rc::gen::inRange<std::int64_t>(0, 14), *rc::gen::inRange<std::int64_t>(1, 6)};
  const char* tensor_parallel = *rc::gen::element("R,R,R,R,R", "R,R,R,R,S(0)", "R,R,R,R,S(1)");
  HsdpOptions options = sum_over({"s", "c"}, {"r", "q"});
  if (*rc::gen::arbitrary<bool>()) options.replicate = {"q", "r"};
  if (*rc::gen::arbitrary<bool>()) options.shard = {"c", "s"};
  if (*rc::gen::arbitrary<bool>()) options.shard = {"s"};
  if (tensor_parallel == std::string("R,R,R,R,R")) {
    options.partial =
        *rc::gen::elementOf(std::vector<std::vector<std::string>>{{}, {"t"}, {"c", "t"}, {"t", "c"}});
    if (options.partial.size() > 1) options.shard = {"s"};  // c adds up here
  }
  options.shard_dim = *rc::gen::inRange(-1, 2);
  if (*rc::gen::arbitrary<bool>()) options.split = Balanced{};
  options.min_numel = *rc::gen::element<std::int64_t>(0, 20);
  if (*rc::gen::arbitrary<bool>()) options.param_dtype = DType::bf16;
  if (*rc::gen::arbitrary<bool>()) options.reduce_dtype = DType::f32;
  return {parse_layout(tensor_parallel, Mesh(axes, ranks), shape, DType::f32), options};
}

AnyParam any_param() { return *rc::gen::exec(make_param); }

// The table of hsdp_param.h, axis by axis from the options alone.
RC_GTEST_PROP(HsdpLayouts, AreThoseOfTheTable, ()) {
  const AnyParam any = any_param();
  const HsdpParam param(any.layout, any.options);
  const HsdpOptions& options = any.options;
  const bool splits = any.layout.shape[0] * any.layout.shape[1] >= options.min_numel;
  const auto names = [](const std::vector<std::string>& list, const MeshAxis& axis) {
    return axis.size > 1 && std::count(list.begin(), list.end(), axis.name) > 0;
  };
  for (std::size_t i = 0; i < any.layout.placements.size(); ++i) {
    const MeshAxis& axis = any.layout.mesh.axes()[i];
    const bool is_split = splits && names(options.shard, axis), is_partial = names(options.partial, axis),
               sees_data = names(options.shard, axis) || names(options.replicate, axis);
    const Placement whole = any.layout.placements[i];
    const Placement gradient = sees_data    ? Placement(Partial{options.reduce})
                               : is_partial ? Placement(Partial{ReduceOp::sum})
                                            : whole;
    RC_ASSERT(std::holds_alternative<Shard>(param.sharded().placements[i]) ==
              (is_split || std::holds_alternative<Shard>(whole)));
    RC_ASSERT(param.unsharded().placements[i] == whole);
    RC_ASSERT(param.gradient().placements[i] == gradient);
    RC_ASSERT(param.accumulated().placements[i] == gradient);
    RC_ASSERT(param.scattered().placements[i] == (is_split ? param.sharded().placements[i] : gradient));
    RC_ASSERT(param.reduced().placements[i] == param.sharded().placements[i]);
  }
}

// The groups of the mesh along the axes on which two layouts differ, without those of one rank.
std::vector<int> axes_that_differ(const Layout& a, const Layout& b) {
  std::vector<int> axes;
  for (int axis = 0; axis < a.mesh.num_axes(); ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (a.mesh.axis_size(axis) > 1 && a.placements[i] != b.placements[i]) axes.push_back(axis);
  }
  return axes;
}

std::set<Rank> ranks_of(const Mesh& mesh, Rank self, const std::vector<int>& axes) {
  const std::vector<Rank> group = mesh.group_of(self, axes);
  return {group.begin(), group.end()};
}

RC_GTEST_PROP(HsdpGroups, AreThoseOfTheMeshAlongTheAxesOnWhichTheLayoutsDiffer, ()) {
  const AnyParam any = any_param();
  const HsdpParam param(any.layout, any.options);
  const Mesh& mesh = any.layout.mesh;
  const auto expect_one = [&](const Plan& plan, const std::vector<int>& axes) {
    for (const Group& group : plan.groups) {
      RC_ASSERT(std::set<Rank>(group.ranks.begin(), group.ranks.end()) == ranks_of(mesh, plan.self, axes));
    }
  };
  for (const Rank self : mesh.ranks()) {
    expect_one(param.unshard_plan(self), axes_that_differ(param.sharded(), param.unsharded()));
    expect_one(param.reduce_plan(self, {Part::scatter}),
               axes_that_differ(param.gradient(), param.scattered()));
    expect_one(param.reduce_plan(self, {Part::all_reduce}),
               axes_that_differ(param.scattered(), param.reduced()));
  }
}

// A group that cannot be had is an error; no other takes its place.
TEST(HsdpGroups, ThatTheMeshDoesNotHaveAreErrors) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const Layout layout = parse_layout("R,S(0)", mesh, {8}, DType::f32);
  const auto error = [&](const HsdpOptions& options) {
    return message_of([&] { HsdpParam(layout, options); });
  };
  EXPECT_THAT(error(sum_over({"fsdp"})),
              HasSubstr("'fsdp' is neither an axis nor an alias of the mesh dp=2,tp=2"));
  EXPECT_THAT(error(sum_over({"dp"}, {"ddp"})), HasSubstr("'ddp' is neither"));
  EXPECT_THAT(error(sum_over({"tp"})), AllOf(HasSubstr("R,S(0) over dp=2,tp=2: tp splits it already"),
                                             HasSubstr("use axes where it is R")));
  EXPECT_THAT(error(sum_over({"dp"}, {}, {"tp"})), HasSubstr("tp splits it already"));
  EXPECT_THAT(error(sum_over({"dp"}, {"dp"})), HasSubstr("the axis dp comes twice"));
  const HsdpParam param(layout, sum_over({"dp"}));
  EXPECT_THROW(param.unshard_plan(4), InvalidInput);
  EXPECT_THROW(param.accumulate_plan(-1, true), InvalidInput);
  const Mesh other = Mesh::parse("a=2,b=2");
  EXPECT_THAT(message_of([&] {
                unified_layout(other.slice("a", 0),
                               parse_layout("S(0)", mesh.slice("tp", 0), {8}, DType::f32), 0);
              }),
              HasSubstr("cannot be concatenated"));
}

TEST(HsdpErrors, SayWhatIsWrong) {
  const Mesh mesh = Mesh::parse("dp=2");
  const auto error = [&](const Layout& layout, const std::function<void(HsdpOptions&)>& change) {
    HsdpOptions options = sum_over({"dp"});
    change(options);
    return message_of([&] { HsdpParam(layout, options); });
  };
  const Layout floats = replicated_layout(mesh, {8}, DType::f32),
               ints = replicated_layout(mesh, {8}, DType::i32);
  EXPECT_THAT(error(floats, [](auto& o) { o.reduce = ReduceOp::max; }),
              HasSubstr("reduce=max: gradients are averaged"));
  EXPECT_THAT(error(floats, [](auto& o) { o.param_dtype = DType::i32; }),
              HasSubstr("param_dtype=i32 for a parameter of f32"));
  EXPECT_THAT(error(ints, [](auto& o) { o.reduce_dtype = DType::f32; }),
              HasSubstr("reduce_dtype=f32 for a parameter of i32"));
  EXPECT_THAT(error(ints, [](auto& o) { o.reduce = ReduceOp::avg; }), HasSubstr("avg"));
  EXPECT_THAT(error(floats, [](auto& o) { o.shard_dim = 1; }), HasSubstr("1"));
  EXPECT_THAT(error(parse_layout("P(sum)", mesh, {8}, DType::f32), [](auto&) {}),
              HasSubstr("reduce it first"));
}

// ---- data ----

// Micro-batches of gradients: accumulated without communication, reduced, and added to what an earlier step
// left.
RC_GTEST_PROP(HsdpData, IsWhatTheLayoutsSay, ()) {
  const AnyParam any = any_param();
  const HsdpParam param(any.layout, any.options);
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint32_t>());
  const auto value = [&](std::int64_t element) { return small_integer(seed, element, 0, 100); };
  const auto plans = [&](const auto& plan) { return plans_of(any.layout, plan); };

  const NamedShards unsharded = run_named(plans([&](Rank rank) { return param.unshard_plan(rank); }),
                                          {{"shard", make_shards(param.sharded(), value)}});
  RC_ASSERT(unsharded.at("parameter") == make_shards(param.unsharded(), value));

  // At most 3 * 2 * 2 * 2 * 2 contributions of two gradients of at most 2: sums that bf16 holds.
  constexpr std::int64_t kMost = 2;
  const auto gradient = [&](int micro_batch) {
    return make_shards(param.gradient(), [&, micro_batch](std::int64_t element, std::int64_t contribution) {
      return small_integer(seed + 1 + static_cast<std::uint64_t>(micro_batch), element, contribution, kMost);
    });
  };
  const std::int64_t contributions = num_contributions(param.gradient());
  const auto total = [&](int first, int last) {
    return make_shards(param.reduced(), [&](std::int64_t element) {
      double sum = 0;
      for (int m = first; m <= last; ++m) {
        for (std::int64_t c = 0; c < contributions; ++c) {
          sum += small_integer(seed + 1 + static_cast<std::uint64_t>(m), element, c, kMost);
        }
      }
      return sum;
    });
  };
  NamedShards state = run_named(plans([&](Rank rank) { return param.accumulate_plan(rank, true); }),
                                {{"gradient", gradient(0)}});
  state["gradient"] = gradient(1);
  state = run_named(plans([&](Rank rank) { return param.accumulate_plan(rank, false); }), state);
  const NamedShards reduced = run_named(plans([&](Rank rank) {
                                          return param.reduce_plan(rank, {Part::both, true});
                                        }),
                                        state);
  RC_ASSERT(reduced.at("reduced") == total(0, 1));

  // In two parts, which is the same, and added to the first step's.
  const NamedShards scattered = run_named(plans([&](Rank rank) {
                                            return param.reduce_plan(rank, {Part::scatter, false});
                                          }),
                                          {{"gradient", gradient(2)}});
  const NamedShards sum =
      run_named(plans([&](Rank rank) {
                  return param.reduce_plan(rank, {Part::all_reduce, false, true});
                }),
                {{"scattered", scattered.at("scattered")}, {"reduced", reduced.at("reduced")}});
  RC_ASSERT(sum.at("reduced") == total(0, 2));
}

TEST(HsdpData, UnevenShardsArePaddedOnTheWayAlone) {
  const HsdpParam param(replicated_layout(Mesh::parse("dp=4"), {5, 2}, DType::f32), sum_over({"dp"}));
  EXPECT_THAT((std::vector{local_numel(param.sharded(), 0), local_numel(param.sharded(), 1),
                           local_numel(param.sharded(), 2), local_numel(param.sharded(), 3)}),
              ElementsAre(4, 4, 2, 0));
  const Plan plan = param.unshard_plan(3);
  EXPECT_EQ(plan.buffers[0].numel, 0);
  EXPECT_THAT(calls_of(plan), ElementsAre("all_gather 0/1/2/3"));
  EXPECT_EQ(param.unshard().steps.front().bytes_received_max, 10 * 4);
  EXPECT_EQ(param.unshard().steps.front().wire_bytes_received_total, 4 * 3 * 4 * 4);
}

TEST(HsdpData, MixedPrecisionTravelsInItsOwnTypes) {
  HsdpOptions options = sum_over({"dp"});
  options.param_dtype = DType::bf16, options.reduce_dtype = DType::f32;
  const HsdpParam param(replicated_layout(Mesh::parse("dp=2"), {8}, DType::f32), options);
  EXPECT_EQ(param.unshard().travel_dtype, DType::bf16);
  EXPECT_EQ(param.reduction({}).travel_dtype, DType::f32);
  EXPECT_EQ(param.reduction({}).target.dtype, DType::f32);
  // Sums that bf16 would round: 257 of 256 and 1.
  const Shards gradient = {{0, std::vector<double>(8, 256)}, {1, std::vector<double>(8, 1)}};
  const NamedShards out =
      run_named(plans_of(param.gradient(), [&](Rank rank) { return param.reduce_plan(rank, {}); }),
                {{"gradient", gradient}});
  EXPECT_EQ(out.at("reduced").at(0), std::vector<double>(4, 257));
}

TEST(HsdpData, MeansAreOfTheData) {
  HsdpOptions options = sum_over({"s"}, {"r"}, {"t"});
  options.reduce = ReduceOp::avg;
  const HsdpParam param(replicated_layout(Mesh::parse("r=2,s=2,t=2"), {4}, DType::f32), options);
  const Shards gradient = make_shards(param.gradient(), [](std::int64_t element, std::int64_t contribution) {
    return static_cast<double>(8 * element + contribution);
  });
  const NamedShards out =
      run_named(plans_of(param.gradient(), [&](Rank rank) { return param.reduce_plan(rank, {}); }),
                {{"gradient", gradient}});
  // Contributions 0 to 7: means over r and s, sums over t.
  EXPECT_EQ(out.at("reduced"), make_shards(param.reduced(), [](std::int64_t element) {
              return static_cast<double>(16 * element + 7);
            }));
}

// What a backward pass leaves in another layout is brought to the parameter's first: added up over tp, or
// moved.
TEST(HsdpData, GradientsInOtherLayoutsAreNormalized) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const HsdpParam param(parse_layout("R,S(0)", mesh, {6, 4}, DType::f32), sum_over({"dp"}));
  for (const char* placements : {"P(sum),P(sum)", "P(sum),S(1)", "P(sum),R", "P(sum),S(0)"}) {
    SCOPED_TRACE(placements);
    const Layout produced = parse_layout(placements, mesh, {6, 4}, DType::f32);
    const auto value = [](std::int64_t element, std::int64_t contribution) {
      return static_cast<double>(10 * element + contribution * contribution);
    };
    NamedShards state =
        run_named(plans_of(produced, [&](Rank rank) { return param.normalize_plan(rank, produced); }),
                  {{"produced", make_shards(produced, value)}});
    state = run_named(plans_of(produced, [&](Rank rank) { return param.reduce_plan(rank, {}); }), state);
    const std::int64_t contributions = num_contributions(produced);
    EXPECT_EQ(state.at("reduced"), make_shards(param.reduced(), [&](std::int64_t element) {
                double sum = 0;
                for (std::int64_t c = 0; c < contributions; ++c) sum += value(element, c);
                return sum;
              }));
  }
  const auto error = [&](const char* placements, const Mesh& on, Shape shape) {
    const Layout produced = parse_layout(placements, on, std::move(shape), DType::f32);
    return message_of([&] { param.normalize_plan(0, produced); });
  };
  EXPECT_THAT(error("R,P(sum)", mesh, {6, 4}), HasSubstr("ranks along dp have different data"));
  EXPECT_THAT(error("P(sum),P(sum)", Mesh::parse("dp=2,ep=2"), {6, 4}),
              HasSubstr("they lie on different meshes"));
  EXPECT_THAT(error("P(sum),P(sum)", mesh, {4, 6}), HasSubstr("their shapes are 4x6 and 6x4"));
}

TEST(HsdpPlans, HaveDigestsThatTellThemApart) {
  const HsdpParam param(replicated_layout(Mesh::parse("r=2,s=2"), {4}, DType::f32), sum_over({"s"}, {"r"}));
  std::set<Digest> digests = {param.unshard_plan(0).inputs, param.accumulate_plan(0, true).inputs,
                              param.accumulate_plan(0, false).inputs};
  for (const Part part : {Part::scatter, Part::all_reduce, Part::both}) {
    for (const bool add : {false, true}) digests.insert(param.reduce_plan(0, {part, false, add}).inputs);
  }
  EXPECT_EQ(digests.size(), 9U);
  EXPECT_EQ(param.unshard_plan(0).inputs, param.unshard_plan(3).inputs);
}

}  // namespace
}  // namespace cp::testing
