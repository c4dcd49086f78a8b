#include "shared/fully_shard/unshard_writer.h"

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
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
    for (std::int64_t iteration = 0; iteration < std::int64_t{2} * slots; ++iteration) {
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

// All pieces forward, then back: whole buckets in a Repeat where there are several, and the last one, which
// may have fewer pieces, by itself. Of each piece its parameters come out in both passes, and its gradient,
// which the caller has, is added.
Plan buckets_plan(const ShardedUnit& unit, Rank rank) {
  PlanBuilder builder(rank, host_target());
  UnshardWriter writer(builder, rank, unit);
  const StreamId compute = builder.stream("compute");
  const std::int64_t numel = unit.numel, all = unit.pieces * numel, full = unit.pieces / unit.bucket;
  const BufferId forward = builder.output("forward", unit.dtype, all),
                 backward = builder.output("backward", unit.dtype, all),
                 in = builder.input("gradient", unit.dtype, all);
  // Of a piece its first elements, and the others, which may lie apart.
  const auto for_each_part = [&](const auto& use) {
    if (unit.replicated > 0) use(std::int64_t{0}, unit.replicated);
    if (unit.sharded_numel() > 0) use(unit.replicated, unit.sharded_numel());
  };
  const auto copy = [&](const Window& from, const Window& to, const char* label) {
    for_each_part([&](std::int64_t begin, std::int64_t count) {
      builder.add(compute, Copy{from.flat(begin, count), to.flat(begin, count)}, label);
    });
  };
  const auto for_each_bucket = [&](bool from_end, const auto& body) {
    const auto repeated = [&] {
      if (full == 0) return;
      const std::int64_t step = full > 1 ? (from_end ? -unit.bucket : unit.bucket) : 0;
      if (full > 1) builder.begin_repeat(full);
      for (std::int64_t i = 0; i < unit.bucket; ++i) {
        const std::int64_t at = from_end ? full * unit.bucket - 1 - i : i;
        body(StackIndex{at, step}, StackIndex{from_end ? unit.pieces - 1 - at : at, std::abs(step)});
      }
      if (full > 1) builder.end_repeat();
    };
    const auto rest = [&] {
      for (std::int64_t i = 0; i < unit.pieces % unit.bucket; ++i) {
        const std::int64_t at = from_end ? unit.pieces - 1 - i : full * unit.bucket + i;
        body(StackIndex{at, 0}, StackIndex{from_end ? unit.pieces - 1 - at : at, 0});
      }
    };
    if (from_end) rest();
    repeated();
    if (!from_end) rest();
  };
  for_each_bucket(false, [&](StackIndex at, StackIndex turn) {
    copy(writer.unshard(at, turn), in_stack(forward, numel, at), "keep");
  });
  for_each_bucket(true, [&](StackIndex at, StackIndex turn) {
    copy(writer.unshard_again(at, turn), in_stack(backward, numel, at), "keep again");
    const GradientPlace place = writer.gradient(at, turn);
    const Window gradient = in_stack(in, numel, at);
    for_each_part([&](std::int64_t begin, std::int64_t count) {
      const View from = gradient.flat(begin, count), to = place.window.flat(begin, count);
      if (place.adds)
        builder.add(compute, Accumulate{ReduceOp::sum, from, to}, "add gradient");
      else
        builder.add(compute, Copy{from, to}, "gradient");
    });
    writer.reduce(at, turn);
  });
  return std::move(builder).build(Digest{});
}

// Pieces that are gathered and reduced together, elements that every rank keeps, parts that stay for the
// backward pass, and slots: what is gathered is what shards are made of, and gradients are added where those
// of a rank are. Which elements a rank has is written down once more here: those that are replicated, of all
// pieces of a bucket, and behind them the rank's equal part of all others, which end with padding.
RC_GTEST_PROP(UnshardWriter, GathersAndReducesBuckets, ()) {
  const int ranks = pick("ranks", rc::gen::inRange(2, 5));
  const Mesh mesh({{"r", 1}, {"s", ranks}});
  const std::int64_t numel = pick("numel", rc::gen::inRange<std::int64_t>(1, 9));
  const bool casts = pick("cast", rc::gen::arbitrary<bool>());
  const HsdpParam param(replicated_layout(mesh, {numel}, DType::f32),
                        flat_options(casts ? DType::bf16 : DType::f32, DType::f32));
  ShardedUnit like;
  like.pieces = pick("pieces", rc::gen::inRange<std::int64_t>(1, 8));
  like.bucket = pick("bucket", rc::gen::inRange<std::int64_t>(1, 5));
  like.replicated = pick("replicated", rc::gen::inRange<std::int64_t>(0, numel));
  like.prefetch = pick("prefetch", rc::gen::inRange(0, 3));
  std::vector<std::int64_t> kept{0, 1};
  if (ranks == 4) kept.push_back(2);
  like.kept_over = pick("kept over", rc::gen::elementOf(kept));
  like.resident_sums = !casts && pick("sums stay", rc::gen::arbitrary<bool>());
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint32_t>());
  const auto unit_of = [&](Rank rank) {
    ShardedUnit unit = flat_unit(param, rank);
    unit.name = "layers", unit.pieces = like.pieces, unit.bucket = like.bucket;
    unit.replicated = like.replicated, unit.prefetch = like.prefetch, unit.kept_over = like.kept_over;
    unit.resident_sums = like.resident_sums;
    return unit;
  };

  NamedShards in, expected;
  // Of whole gradients a rank has its own sums; of others those of all ranks.
  const std::string sums = "gradients/layers";
  for (const Rank rank : mesh.ranks()) {
    const auto parameter = [&](std::int64_t piece, std::int64_t at) {
      return small_integer(seed, piece * numel + at, 0, 100);
    };
    const auto gradient_of = [&](Rank from, std::int64_t piece, std::int64_t at) {
      return small_integer(seed + 1, piece * numel + at, from, 2);
    };
    for (std::int64_t piece = 0; piece < like.pieces; ++piece) {
      for (std::int64_t at = 0; at < numel; ++at) {
        expected["forward"][rank].push_back(parameter(piece, at));
        in["gradient"][rank].push_back(gradient_of(rank, piece, at));
      }
    }
    std::vector<double>&shard = in["parameters/layers"][rank], &added = expected[sums][rank];
    for (std::int64_t first = 0; first < like.pieces; first += like.bucket) {
      const std::int64_t behind = std::min(first + like.bucket, like.pieces);
      std::vector<std::pair<std::int64_t, std::int64_t>> small, others;  // by piece and element
      for (std::int64_t piece = first; piece < behind; ++piece) {
        for (std::int64_t at = 0; at < numel; ++at)
          (at < like.replicated ? small : others).emplace_back(piece, at);
      }
      const std::size_t part = idx(ceil_div(std::ssize(others), std::int64_t{ranks}));
      const auto sum = [&](std::pair<std::int64_t, std::int64_t> of, bool of_all) {
        double all = kEarlier;
        for (const Rank from : mesh.ranks())
          all += of_all || from == rank ? gradient_of(from, of.first, of.second) : 0;
        return all;
      };
      for (const auto& of : small) shard.push_back(parameter(of.first, of.second));
      // Sums over ranks of what is replicated come with the update.
      for (const auto& of : small) added.push_back(sum(of, false));
      for (std::size_t i = idx(rank) * part; i < idx(rank + 1) * part; ++i) {
        const bool is_padding = i >= others.size();
        shard.push_back(is_padding ? kPadding : parameter(others[i].first, others[i].second));
        if (!like.resident_sums) added.push_back(is_padding ? kEarlier : sum(others[i], true));
      }
      if (!like.resident_sums) continue;
      for (std::size_t i = 0; i < part * idx(ranks); ++i)
        added.push_back(i < others.size() ? sum(others[i], false) : kEarlier);
    }
    in[sums][rank].assign(added.size(), kEarlier);
  }
  expected["backward"] = expected["forward"];
  const NamedShards out =
      run_named(plans_of(param.sharded(), [&](Rank rank) { return buckets_plan(unit_of(rank), rank); }), in);
  for (const auto& [name, shards] : expected) RC_ASSERT(out.at(name) == shards);
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
