#include "shared/fully_shard/unshard_writer.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "tests/fully_shard/hsdp_runs.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

constexpr double kPadding = 77, kEarlier = 1;

HsdpOptions flat_options(DType dtype, DType gradient_dtype) {
  HsdpOptions options;
  options.shard = {"s"}, options.replicate = {"r"};
  options.reduce = ReduceOp::sum;
  options.param_dtype = dtype, options.reduce_dtype = gradient_dtype;
  return options;
}

ShardedUnit layers_of(const HsdpParam& param, Rank rank, std::int64_t pieces, int prefetch = 1) {
  ShardedUnit unit = flat_unit(param, rank);
  unit.name = "layers", unit.pieces = pieces, unit.prefetch = prefetch;
  return unit;
}

// Every layer in one loop: its parameters come out, and its gradients, which the caller has, are added to
// those of an earlier micro-batch.
Plan layers_plan(const ShardedUnit& unit, Rank rank) {
  PlanBuilder builder(rank, host_target());
  UnshardWriter writer(builder, rank, unit);
  const StreamId compute = builder.stream("compute");
  const std::int64_t numel = unit.numel, all = unit.pieces * numel;
  const BufferId out = builder.output("parameter", unit.dtype, all);
  const BufferId in = builder.input("gradient", unit.dtype, all);
  const StackIndex at{0, unit.pieces > 1 ? 1 : 0};
  if (unit.pieces > 1) builder.begin_repeat(unit.pieces);
  const View gradient = in_stack(in, numel, at).flat(0, numel);
  builder.add(compute, Copy{writer.unshard(at, at).flat(0, numel), in_stack(out, numel, at).flat(0, numel)},
              "keep");
  const GradientPlace place = writer.gradient(at, at);
  const View to = place.window.flat(0, numel);
  if (!place.adds) {
    builder.add(compute, Copy{gradient, to}, "gradient");
  } else if (unit.dtype == unit.gradient_dtype) {
    builder.add(compute, Accumulate{ReduceOp::sum, gradient, to}, "add gradient");
  } else {
    const View cast = flat_view(builder.temporary("cast", unit.gradient_dtype, numel), 0, numel);
    builder.add(compute, Cast{gradient, cast}, "cast gradient");
    builder.add(compute, Accumulate{ReduceOp::sum, cast, to}, "add gradient");
  }
  writer.reduce(at, at);
  if (unit.pieces > 1) builder.end_repeat();
  return std::move(builder).build(Digest{});
}

// The loop moves what HsdpParam's own plans move for one layer after the other.
RC_GTEST_PROP(UnshardWriter, WritesTheMovesOfHsdpParam, ()) {
  std::vector<MeshAxis> axes = {{"r", pick("replicas", rc::gen::inRange(1, 4))},
                                {"s", pick("shards", rc::gen::inRange(1, 5))}};
  if (pick("replicas are neighbours", rc::gen::arbitrary<bool>())) std::swap(axes[0], axes[1]);
  const Mesh mesh(axes);
  const std::int64_t numel = pick("numel", rc::gen::inRange<std::int64_t>(1, 13)),
                     pieces = pick("pieces", rc::gen::inRange<std::int64_t>(1, 4));
  const HsdpParam param(replicated_layout(mesh, {numel}, DType::f32),
                        flat_options(pick("dtype", rc::gen::element(DType::f32, DType::bf16)),
                                     pick("gradient_dtype", rc::gen::element(DType::f32, DType::bf16))));
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint32_t>());

  NamedShards in, expected;
  for (const Rank rank : mesh.ranks()) {
    const ShardedUnit unit = layers_of(param, rank, pieces);
    const std::int64_t held = unit.num_ranks() == 1 ? numel : unit.shard_numel();
    in["gradients/layers"][rank].assign(idx(pieces * held), kEarlier);
    expected["gradients/layers"][rank].assign(idx(pieces * held), kEarlier);
  }
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const auto value = [&](std::int64_t element) {
      return small_integer(seed, piece * numel + element, 0, 100);
    };
    const auto gradient = [&](std::int64_t element, std::int64_t contribution) {
      return small_integer(seed + 1, piece * numel + element, contribution, 2);
    };
    const Shards shards = make_shards(param.sharded(), value),
                 gradients = make_shards(param.gradient(), gradient);
    const NamedShards whole = run_named(
        plans_of(param.sharded(), [&](Rank rank) { return param.unshard_plan(rank); }), {{"shard", shards}});
    const NamedShards reduced = run_named(
        plans_of(param.sharded(),
                 [&](Rank rank) { return param.reduce_plan(rank, {HsdpReduction::Part::scatter}); }),
        {{"gradient", gradients}});
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const Rank rank : mesh.ranks()) {
      const ShardedUnit unit = layers_of(param, rank, pieces);
      const std::int64_t held = unit.num_ranks() == 1 ? numel : unit.shard_numel();
      append(in["parameters/layers"][rank], shards.at(rank));
      in["parameters/layers"][rank].resize(idx((piece + 1) * held), kPadding);
      append(in["gradient"][rank], gradients.at(rank));
      append(expected["parameter"][rank], whole.at("parameter").at(rank));
      const std::vector<double>& sums = reduced.at("scattered").at(rank);
      for (std::size_t i = 0; i < sums.size(); ++i)
        expected["gradients/layers"][rank][idx(piece * held) + i] += sums[i];
    }
  }
  const int prefetch = pick("prefetch", rc::gen::inRange(0, 4));
  const NamedShards out = run_named(
      plans_of(param.sharded(),
               [&](Rank rank) { return layers_plan(layers_of(param, rank, pieces, prefetch), rank); }),
      in);
  RC_ASSERT(out.at("parameter") == expected.at("parameter"));
  RC_ASSERT(out.at("gradients/layers") == expected.at("gradients/layers"));
}

// Turns that follow one another have different slots, whatever layers stand in a body: in each loop as many
// of them as there are slots; and slots are all used.
RC_GTEST_PROP(Stack, TurnsInARowHaveDifferentSlots, ()) {
  const int slots = pick("slots", rc::gen::inRange(1, 9));
  const std::int64_t body = pick("turns of a body", rc::gen::inRange<std::int64_t>(1, 10)),
                     first = pick("first turn", rc::gen::inRange<std::int64_t>(0, 20)), piece = 5;
  std::map<std::int64_t, std::int64_t> slot_of_turn;
  for (std::int64_t of_body = 0; of_body < body; ++of_body) {
    const Window window = in_slot(0, piece, {first + of_body, body}, slots);
    for (std::int64_t iteration = 0; iteration < 2 * slots; ++iteration) {
      const std::int64_t offset = offset_at(window.flat(0, piece), iteration);
      RC_ASSERT(offset % piece == 0);
      slot_of_turn[first + of_body + iteration * body] = offset / piece;
    }
  }
  for (const auto& [turn, slot] : slot_of_turn) {
    RC_ASSERT(slot >= 0 && slot < slots);
    for (std::int64_t behind = turn + 1; behind < turn + slots && slot_of_turn.contains(behind); ++behind)
      RC_ASSERT(slot_of_turn.at(behind) != slot);
  }
}

TEST(UnshardWriter, GoesByTheGroupsAndTypesOfHsdpParam) {
  const Mesh mesh = Mesh::parse("r=2,s=3");
  const HsdpParam param(replicated_layout(mesh, {7}, DType::f32), flat_options(DType::bf16, DType::f32));
  const ShardedUnit unit = flat_unit(param, 4);
  EXPECT_EQ(unit.numel, 7);
  EXPECT_EQ(unit.shard_numel(), 3);
  EXPECT_EQ(unit.ranks, (std::vector<Rank>{3, 4, 5}));
  EXPECT_EQ(unit.replicas, (std::vector<Rank>{1, 4}));
  EXPECT_EQ(unit.dtype, DType::bf16);
  EXPECT_EQ(unit.shard_dtype, DType::f32);
  EXPECT_EQ(unit.gradient_dtype, DType::f32);
  // A parameter that expert parallelism has split already: each rank's own experts.
  const HsdpParam experts(parse_layout("R,R,S(0)", Mesh::parse("r=2,s=3,ep=2"), {14}, DType::f32),
                          flat_options(DType::bf16, DType::f32));
  const ShardedUnit own = flat_unit(experts, 7);
  EXPECT_EQ(own.numel, 7);
  EXPECT_EQ(own.ranks, (std::vector<Rank>{7, 9, 11}));
  EXPECT_EQ(own.replicas, (std::vector<Rank>{1, 7}));
}

TEST(UnshardWriter, RefusesWhatIsNoFlatUnit) {
  const Mesh mesh = Mesh::parse("r=2,s=2");
  const auto error = [&](const Shape& shape, const HsdpOptions& options) {
    return message_of([&] { flat_unit(HsdpParam(replicated_layout(mesh, shape, DType::f32), options), 0); });
  };
  HsdpOptions options = flat_options(DType::f32, DType::f32);
  EXPECT_THAT(error({8, 2}, options), HasSubstr("a parameter of 2 dimensions"));
  options.split = Balanced{};
  EXPECT_THAT(error({7}, options), HasSubstr("give it one dimension and one shard axis with equal chunks"));
  options = flat_options(DType::f32, DType::f32);
  options.shard = {"s", "r"}, options.replicate.clear();
  EXPECT_THAT(error({7}, options), HasSubstr("is not a flat unit"));
  options = flat_options(DType::f32, DType::f32);
  options.reduce = ReduceOp::avg;
  EXPECT_THAT(error({7}, options), HasSubstr("reduce=avg of a flat unit"));
}

}  // namespace
}  // namespace cp::testing
