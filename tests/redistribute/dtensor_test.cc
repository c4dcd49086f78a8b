// The DTensor facade on the fabric, with the caller's buffers: oracle rows A27 to A32, B19 to B22.
#include "shared/redistribute/dtensor.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/forwarding_device.h"
#include "sim/fabric/fabric.h"
#include "tests/mesh/mesh_testing.h"
#include "tests/redistribute/chains.h"
#include "tests/support/shard_data.h"

namespace cp::testing {
namespace {

using Values = std::vector<float>;

// A rank's tensor on these values.
DTensor tensor_of(const Layout& layout, Rank rank, Values& values) {
  return from_local(layout, rank, values.data(), static_cast<std::int64_t>(values.size() * sizeof(float)));
}

Values shard_values(const Layout& layout, Rank rank, const ElementValue& value) {
  Values values;
  const std::int64_t contribution = contribution_of(layout, rank);
  for (const std::int64_t element : element_numbers(layout, rank))
    values.push_back(static_cast<float>(value(element, contribution)));
  return values;
}

Values empty_shard(const Layout& layout, Rank rank) {
  return Values(static_cast<std::size_t>(layout.mesh.contains(rank) ? local_numel(layout, rank) : 0), -1.0F);
}

double arange(std::int64_t element, std::int64_t) { return static_cast<double>(element); }

Values whole(const Layout& layout, double factor = 1) {
  Values values;
  for (std::int64_t i = 0; i < numel(layout.shape); ++i)
    values.push_back(static_cast<float>(factor * static_cast<double>(i)));
  return values;
}

int collectives_issued(const RankTrace& trace) {
  int count = 0;
  for (const OpRecord& record : trace.issued) count += record.sequence >= 0 ? 1 : 0;
  return count;
}

double contributions_summed(const Layout& layout) {
  double product = 1;
  for (const int axis : partial_axes(layout)) product *= layout.mesh.axis_size(axis);
  return product;
}

// ---- what plans are made for ----

// Writes down for which targets it is given plans.
class TargetNotes final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void prepare(const Plan& plan, const Bindings& bindings) override {
    targets.push_back(plan.target.name);
    ForwardingDevice::prepare(plan, bindings);
  }
  std::vector<std::string> targets;
};

TEST(DTensorTarget, PlansAreMadeForTheDevicesTarget) {
  const Mesh mesh({{"tp", 2}});
  const Layout rows = parse_layout("S(0)", mesh, {4, 4}, DType::f32),
               columns = parse_layout("S(1)", mesh, {4, 4}, DType::f32);
  for (const Target* target : {&host_target(), &gpu_target("sm90")}) {
    sim::Fabric fabric(2, {.target = *target});
    std::vector<std::vector<std::string>> targets(2);
    fabric.run([&](Rank rank, Device& device) {
      TargetNotes notes(device);
      Values in = shard_values(rows, rank, arange), out = empty_shard(columns, rank), full(16);
      redistribute(notes, tensor_of(rows, rank, in), tensor_of(columns, rank, out));
      EXPECT_EQ(out, shard_values(columns, rank, arange));
      redistribute_backward(notes, rows, columns, tensor_of(columns, rank, out), tensor_of(rows, rank, in));
      full_tensor(notes, tensor_of(rows, rank, in), full.data());
      distribute_tensor(notes, full.data(), tensor_of(rows, rank, in));
      targets[static_cast<std::size_t>(rank)] = notes.targets;
    });
    const std::vector<std::string> wanted(4, target->name);
    EXPECT_EQ(targets[0], wanted);
    EXPECT_EQ(targets[1], wanted);
  }
}

// ---- redistribute and full_tensor ----

// B19: every rank gives the same values, so that each partial axis multiplies them by its size.
TEST(DTensor, B19RedistributesEveryPairOfPlacements) {
  const Mesh mesh = Mesh::parse("a=4,b=2");
  sim::Fabric fabric(8);
  const std::vector<std::string> sources = {"R", "S0", "S1", "P"}, targets = {"R", "S0", "S1"};
  std::vector<std::pair<Layout, Layout>> pairs;
  for (const std::string& a : sources) {
    for (const std::string& b : sources) {
      for (const std::string& c : targets) {
        for (const std::string& d : targets) {
          pairs.emplace_back(layout_by_placements(mesh, a + "," + b, {16, 24}),
                             layout_by_placements(mesh, c + "," + d, {16, 24}));
        }
      }
    }
  }
  for (const std::pair<Layout, Layout>& pair : pairs) {
    const Layout &from = pair.first, &to = pair.second;
    SCOPED_TRACE(str(placements_to_string(from), " -> ", placements_to_string(to)));
    std::vector<Values> moved(8), full(8);
    fabric.run([&](Rank rank, Device& device) {
      const auto r = static_cast<std::size_t>(rank);
      Values in = shard_values(from, rank, arange);
      moved[r] = empty_shard(to, rank);
      full[r].resize(16 * 24);
      redistribute(device, tensor_of(from, rank, in), tensor_of(to, rank, moved[r]));
      full_tensor(device, tensor_of(to, rank, moved[r]), full[r].data());
    });
    const double factor = contributions_summed(from);
    for (Rank rank = 0; rank < 8; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const auto scaled = [&](std::int64_t element, std::int64_t) { return factor * arange(element, 0); };
      ASSERT_EQ(moved[r], shard_values(to, rank, scaled)) << "rank " << rank;
      ASSERT_EQ(full[r], whole(from, factor)) << "rank " << rank;
    }
  }
}

// B22: a tensor-parallel shard becomes one of a 2-D sharded parameter.
TEST(DTensor, B22AShardOfReplicasIsShardedFurtherByOneCollective) {
  const Mesh mesh = Mesh::parse("fsdp=2,tp=2");
  const Layout from = layout_by_placements(mesh, "R,S0", {4, 2});
  const Layout to = layout_by_placements(mesh, "S0,S0", {4, 2});
  std::vector<Values> out(4);
  std::vector<RankTrace> traces(4);
  sim::Fabric fabric(4);
  fabric.run([&](Rank rank, Device& device) {
    const auto r = static_cast<std::size_t>(rank);
    Values in = shard_values(from, rank, arange);
    out[r] = empty_shard(to, rank);
    redistribute(device, tensor_of(from, rank, in), tensor_of(to, rank, out[r]), {}, &traces[r]);
  });
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(collectives_issued(traces[r]), 1);
    EXPECT_EQ(out[r], (Values{static_cast<float>(2 * r), static_cast<float>(2 * r + 1)}));
  }
}

// A27, A28: shards of the whole tensor, put together again.
TEST(DTensor, A27A28FullTensorOfUnevenShardsIsTheTensor) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  sim::Fabric fabric(4);
  for (const std::int64_t length : {10, 9, 3, 1}) {
    for (const Layout& layout :
         {layout_by_placements(mesh, "S0,S0", {length}), layout_by_placements(mesh, "S0,S1", {length, 5})}) {
      std::vector<Values> full(4);
      fabric.run([&](Rank rank, Device& device) {
        Values& mine = full[static_cast<std::size_t>(rank)];
        Values shard = shard_values(layout, rank, arange);
        mine.resize(static_cast<std::size_t>(numel(layout.shape)));
        full_tensor(device, tensor_of(layout, rank, shard), mine.data());
      });
      for (const Values& values : full) EXPECT_EQ(values, whole(layout)) << to_string(layout);
    }
  }
}

TEST(DTensor, FullTensorReducesPartialValues) {
  const Layout layout = layout_by_placements(Mesh::parse("a=2,b=2"), "P,S0", {7, 3});
  std::vector<Values> full(4, Values(21));
  sim::Fabric fabric(4);
  fabric.run([&](Rank rank, Device& device) {
    Values shard = shard_values(layout, rank, [](std::int64_t element, std::int64_t c) {
      return c == 0 ? static_cast<double>(element) : 100;
    });
    full_tensor(device, tensor_of(layout, rank, shard), full[static_cast<std::size_t>(rank)].data());
  });
  for (const Values& values : full) {
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i) + 100);
  }
}

TEST(DTensor, MovesToAnotherMesh) {
  const Layout from = layout_by_placements(Mesh::parse("a=2@4/1"), "S0", {7});
  const Layout to = layout_by_placements(Mesh::parse("b=3@1/2/0"), "S0", {7});
  std::vector<Values> out(5);
  sim::Fabric fabric(5);
  fabric.run([&](Rank rank, Device& device) {
    if (!from.mesh.contains(rank) && !to.mesh.contains(rank)) return;
    Values in = from.mesh.contains(rank) ? shard_values(from, rank, arange) : Values{};
    Values& mine = out[static_cast<std::size_t>(rank)];
    mine = empty_shard(to, rank);
    redistribute(device, tensor_of(from, rank, in), tensor_of(to, rank, mine));
  });
  EXPECT_EQ(out, (std::vector<Values>{{6}, {0, 1, 2}, {3, 4, 5}, {}, {}}));
}

// ---- from_local ----

std::vector<Placement> placements_of(const std::string& text, int num_dims) {
  return parse_placements(text, num_dims).placements;
}

// A29: local (4, 4, 4) under any of {S0, S1, S2, R}^3 on 8 x 8 x 4 ranks.
TEST(DTensorFromLocal, A29GlobalShapeIsTheLocalOneTimesTheShardingAxes) {
  const Mesh mesh = Mesh::parse("a=8,b=8,c=4");
  const std::vector<std::string> choices = {"S(0)", "S(1)", "S(2)", "R"};
  for (const std::string& a : choices) {
    for (const std::string& b : choices) {
      for (const std::string& c : choices) {
        const std::string text = str(a, ",", b, ",", c);
        const Layout layout = infer_layout(mesh, placements_of(text, 3), {4, 4, 4}, DType::f32);
        for (int dim = 0; dim < 3; ++dim) {
          const std::string shard = str("S(", dim, ")");
          const int degree = (a == shard ? 8 : 1) * (b == shard ? 8 : 1) * (c == shard ? 4 : 1);
          EXPECT_EQ(layout.shape[static_cast<std::size_t>(dim)], 4 * degree) << text;
        }
        for (const Rank rank : mesh.ranks()) ASSERT_EQ(local_shape(layout, rank), (Shape{4, 4, 4})) << text;
      }
    }
  }
}

// A29: gathered and sharded again, on fewer ranks.
TEST(DTensorFromLocal, A29GatheredAndBackIsTheLocalTensor) {
  const Mesh mesh = Mesh::parse("a=2,b=3,c=2");
  sim::Fabric fabric(12);
  for (const char* text : {"S(0),S(1),S(2)", "S(0),S(0),S(0)", "S(2),R,S(2)", "R,R,R"}) {
    const Layout layout = infer_layout(mesh, placements_of(text, 3), {4, 4, 4}, DType::f32);
    const Layout gathered = parse_layout("R,R,R", mesh, layout.shape, DType::f32);
    std::vector<Values> back(12);
    fabric.run([&](Rank rank, Device& device) {
      Values in = shard_values(layout, rank, arange), middle = empty_shard(gathered, rank);
      Values& out = back[static_cast<std::size_t>(rank)];
      out = empty_shard(layout, rank);
      redistribute(device, tensor_of(layout, rank, in), tensor_of(gathered, rank, middle));
      redistribute(device, tensor_of(gathered, rank, middle), tensor_of(layout, rank, out));
    });
    for (Rank rank = 0; rank < 12; ++rank)
      EXPECT_EQ(back[static_cast<std::size_t>(rank)], shard_values(layout, rank, arange)) << text;
  }
}

TEST(DTensorFromLocal, A30EachDimensionByItsOwnAxis) {
  const Layout layout =
      infer_layout(Mesh::parse("a=2,b=3,c=4"), placements_of("S(0),S(1),S(2)", 3), {2, 3, 1}, DType::f32);
  EXPECT_EQ(layout.shape, (Shape{4, 9, 4}));
}

TEST(DTensorFromLocal, NegativeDimsCountFromTheEnd) {
  const Mesh mesh = Mesh::parse("m=4");
  EXPECT_EQ(infer_layout(mesh, {Shard{-1}}, {3, 2}, DType::f32).shape, (Shape{3, 8}));
  expect_refused([&] { infer_layout(mesh, {Shard{2}}, {3, 2}, DType::f32); }, {"2"});
}

// A31: 10 rows as 3, 3, 3 and 1. Taken to be even, the last rank sees another tensor than the others.
TEST(DTensorFromLocal, A31UnevenShardsNeedTheShape) {
  const Mesh mesh = Mesh::parse("m=4");
  const std::vector<std::int64_t> rows = {3, 3, 3, 1}, inferred = {12, 12, 12, 4};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(infer_layout(mesh, {Shard{0}}, {rows[rank], 2}, DType::f32).shape, (Shape{inferred[rank], 2}));
  }
  // The others' layout does not fit the last rank's shard, and the message says what to do.
  const Layout even = infer_layout(mesh, {Shard{0}}, {3, 2}, DType::f32);
  Values last = {18, 19};
  expect_refused([&] { tensor_of(even, 3, last); },
                 {"rank 3", "8 bytes", "3x2 = 24 bytes", "pass the global shape when shards are uneven"});

  const Layout known = make_layout(mesh, {Shard{0}}, {10, 2}, DType::f32);
  std::vector<Values> full(4, Values(20));
  sim::Fabric fabric(4);
  fabric.run([&](Rank rank, Device& device) {
    Values shard;
    for (std::int64_t i = 0; i < 2 * rows[static_cast<std::size_t>(rank)]; ++i)
      shard.push_back(static_cast<float>(6 * rank + i));
    full_tensor(device, tensor_of(known, rank, shard), full[static_cast<std::size_t>(rank)].data());
  });
  for (const Values& values : full) EXPECT_EQ(values, whole(known));
}

// A31: ranks that go on with their own wrong layouts are stopped with a reason instead of hanging or mixing
// up rows.
TEST(DTensorFromLocal, A31DisagreeingLayoutsAreAnError) {
  const Mesh mesh = Mesh::parse("m=4");
  sim::Fabric fabric(4);
  const auto gather = [&](Rank rank, Device& device) {
    const Layout layout = infer_layout(mesh, {Shard{0}}, {rank == 3 ? 1 : 3, 2}, DType::f32);
    Values shard(rank == 3 ? 2 : 6), full(static_cast<std::size_t>(numel(layout.shape)));
    full_tensor(device, tensor_of(layout, rank, shard), full.data());
  };
  try {
    fabric.run(gather);
    ADD_FAILURE() << "ran";
  } catch (const CollectiveMismatch& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 3"));
  }
}

// A32: rank r holds r columns of five rows: explicit sizes say so; sizes in other dimensions cannot differ.
TEST(DTensorFromLocal, A32ColumnsOnTheLastRankOnly) {
  const Layout layout = parse_layout("S(1,sizes:0/1)", Mesh::parse("m=2"), {5, 1}, DType::f32);
  EXPECT_EQ(local_shape(layout, 0), (Shape{5, 0}));
  EXPECT_EQ(local_shape(layout, 1), (Shape{5, 1}));
  Values four_rows(4);
  expect_refused([&] { tensor_of(layout, 1, four_rows); }, {"rank 1", "16 bytes", "5x1 = 20 bytes"});
  std::vector<Values> full(2, Values(5));
  sim::Fabric fabric(2);
  fabric.run([&](Rank rank, Device& device) {
    Values shard = rank == 1 ? Values{0, 1, 2, 3, 4} : Values{};
    full_tensor(device, tensor_of(layout, rank, shard), full[static_cast<std::size_t>(rank)].data());
  });
  for (const Values& values : full) EXPECT_EQ(values, (Values{0, 1, 2, 3, 4}));
}

TEST(DTensorFromLocal, KeepsTheCallersMemory) {
  const Layout layout = layout_by_placements(Mesh::parse("m=2"), "S0", {4});
  Values values(2);
  const DTensor tensor = tensor_of(layout, 1, values);
  EXPECT_EQ(to_local(tensor), values.data());
  EXPECT_EQ(tensor.size_bytes, 8);
  EXPECT_EQ(tensor.layout, layout);
}

TEST(DTensorFromLocal, ARankOutsideOfTheMeshHoldsNothing) {
  const Layout layout = layout_by_placements(Mesh::parse("m=2"), "S0", {4});
  EXPECT_EQ(from_local(layout, 7, nullptr, 0).size_bytes, 0);
  Values values(1);
  expect_refused([&] { tensor_of(layout, 7, values); }, {"rank 7", "4 bytes", "0 bytes"});
}

// ---- distribute_tensor ----

void expect_distributed(const Layout& layout, std::optional<Rank> root) {
  std::vector<Values> out(6);
  sim::Fabric fabric(6);
  fabric.run([&](Rank rank, Device& device) {
    if (!layout.mesh.contains(rank) && rank != root) return;
    Values& mine = out[static_cast<std::size_t>(rank)];
    mine = empty_shard(layout, rank);
    // With a root, nobody else's values may matter.
    Values full = whole(layout, !root || rank == *root ? 1 : -1);
    distribute_tensor(device, full.data(), tensor_of(layout, rank, mine), root);
  });
  for (Rank rank = 0; rank < 6; ++rank) {
    const Values expected = layout.mesh.contains(rank) ? shard_values(layout, rank, arange) : Values{};
    EXPECT_EQ(out[static_cast<std::size_t>(rank)], expected) << to_string(layout) << ", rank " << rank;
  }
}

TEST(DTensor, DistributeTensorGivesEachRankItsPart) {
  const Mesh mesh = Mesh::parse("a=2,b=2@3/1/0/2");
  for (const char* text : {"S(0),S(1)", "S(0)[1],S(0)[0]", "R,S(0,head_tail)", "R,R"}) {
    const Layout layout = parse_layout(text, mesh, {5, 3}, DType::f32);
    expect_distributed(layout, {});
    for (const Rank root : {0, 3, 5}) expect_distributed(layout, root);  // 5 is outside of the mesh
  }
}

// ---- reduce_partial ----

TEST(DTensor, ReducePartialKeepsShards) {
  const Layout from = layout_by_placements(Mesh::parse("a=2,b=2"), "P,S0", {5, 2});
  const Layout to = layout_by_placements(from.mesh, "R,S0", {5, 2});
  ASSERT_EQ(reduced_layout(from), to);
  std::vector<Values> out(4);
  std::vector<std::string> refusals(4);
  sim::Fabric fabric(4);
  fabric.run([&](Rank rank, Device& device) {
    Values in = shard_values(from, rank, [](std::int64_t element, std::int64_t c) {
      return static_cast<double>(element) + (c == 0 ? 1000 : 0);
    });
    Values& mine = out[static_cast<std::size_t>(rank)];
    mine = empty_shard(to, rank);
    reduce_partial(device, tensor_of(from, rank, in), tensor_of(to, rank, mine));
    const Layout other = layout_by_placements(from.mesh, "S1,S0", {5, 2});
    Values wrong = empty_shard(other, rank);
    try {
      reduce_partial(device, tensor_of(from, rank, in), tensor_of(other, rank, wrong));
    } catch (const InvalidInput& error) {
      refusals[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  for (Rank rank = 0; rank < 4; ++rank) {
    const auto sum = [](std::int64_t element, std::int64_t) {
      return 2 * static_cast<double>(element) + 1000;
    };
    EXPECT_EQ(out[static_cast<std::size_t>(rank)], shard_values(to, rank, sum));
    EXPECT_THAT(refusals[static_cast<std::size_t>(rank)],
                ::testing::HasSubstr("gives R,S(0), not S(1),S(0)"));
  }
}

// ---- gradients ----

struct Backward {
  std::vector<Values> grad_in;
  int collectives = 0;
};

// Runs the gradient of from -> to on grad_out values made by `value`.
Backward backward_of(const Layout& from, const Layout& to, GradientRule rule, const ElementValue& value) {
  const GradientLayouts layouts = gradient_layouts(from, to, rule);
  GradientOptions options;
  options.rule = rule;
  const auto ranks = static_cast<std::size_t>(from.mesh.size());
  Backward result;
  result.grad_in.resize(ranks);
  std::vector<RankTrace> traces(ranks);
  sim::Fabric fabric(from.mesh.size());
  fabric.run([&](Rank rank, Device& device) {
    const auto r = static_cast<std::size_t>(rank);
    Values grad_out = shard_values(layouts.grad_out, rank, value);
    result.grad_in[r] = empty_shard(layouts.grad_in, rank);
    redistribute_backward(device, from, to, tensor_of(layouts.grad_out, rank, grad_out),
                          tensor_of(layouts.grad_in, rank, result.grad_in[r]), options, &traces[r]);
  });
  for (const RankTrace& trace : traces) result.collectives += collectives_issued(trace);
  return result;
}

struct PassedThrough {
  const char* row;
  const char *from, *to;
  Shape shape;
  double gradient;
};

// What comes in as replicated data goes to the source's shards as it is.
TEST(DTensorBackward, ReplicatedGradientsPassWithoutCommunication) {
  const Mesh mesh = Mesh::parse("m=4");
  for (const PassedThrough& row :
       {PassedThrough{"B1", "S0", "R", {13, 3}, 1}, PassedThrough{"B2", "S1", "R", {3, 14}, 1},
        PassedThrough{"B5", "P", "R", {12, 3}, 1}, PassedThrough{"B6", "P", "P", {12, 3}, 1},
        PassedThrough{"B20", "P", "R", {3, 3}, 2}, PassedThrough{"B21", "S0", "S0", {12, 3}, 9}}) {
    const Layout from = layout_by_placements(mesh, row.from, row.shape);
    const Backward backward =
        backward_of(from, layout_by_placements(mesh, row.to, row.shape), GradientRule::replicated,
                    [&](std::int64_t, std::int64_t) { return row.gradient; });
    EXPECT_EQ(backward.collectives, 0) << row.row;
    for (Rank rank = 0; rank < 4; ++rank) {
      const Values expected(static_cast<std::size_t>(local_numel(from, rank)),
                            static_cast<float>(row.gradient));
      EXPECT_EQ(backward.grad_in[static_cast<std::size_t>(rank)], expected) << row.row << ", rank " << rank;
    }
  }
}

TEST(DTensorBackward, B4GradientsOfShardsAreGathered) {
  const Mesh mesh = Mesh::parse("m=4");
  const Layout from = layout_by_placements(mesh, "R", {13, 3});
  const Backward backward =
      backward_of(from, layout_by_placements(mesh, "S0", {13, 3}), GradientRule::replicated, arange);
  EXPECT_EQ(backward.collectives, 4);  // one on each rank
  for (const Values& values : backward.grad_in) EXPECT_EQ(values, whole(from));
}

// Each copy's gradient is its own: the source's is their sum.
TEST(DTensorBackward, AdjointSumsTheGradientsOfCopies) {
  const Mesh mesh = Mesh::parse("m=4");
  const Layout from = layout_by_placements(mesh, "S0", {6});
  const Backward backward =
      backward_of(from, layout_by_placements(mesh, "R", {6}), GradientRule::adjoint,
                  [](std::int64_t element, std::int64_t c) { return static_cast<double>(element + 10 * c); });
  EXPECT_EQ(backward.grad_in, (std::vector<Values>{{60, 64}, {68, 72}, {76, 80}, {}}));
}

TEST(DTensorBackward, AnAverageDividesTheGradient) {
  const Mesh mesh = Mesh::parse("m=4");
  const Layout from = parse_layout("P(avg)", mesh, {6}, DType::f32);
  const Backward backward =
      backward_of(from, layout_by_placements(mesh, "S0", {6}), GradientRule::adjoint, arange);
  for (const Values& values : backward.grad_in) EXPECT_EQ(values, whole(from, 0.25));
}

TEST(DTensorBackward, RefusesOtherLayoutsAndSizes) {
  const Mesh mesh = Mesh::parse("m=1");
  const Layout from = layout_by_placements(mesh, "S0", {6}), to = layout_by_placements(mesh, "R", {6});
  const Layout half = layout_by_placements(mesh, "R", {3});
  sim::Fabric fabric(1);
  Values a(6), b(6);
  const auto run = [&](const DTensor& grad_out, const DTensor& grad_in) {
    fabric.run([&](Rank, Device& device) { redistribute_backward(device, from, to, grad_out, grad_in); });
  };
  EXPECT_NO_THROW(run(tensor_of(to, 0, a), tensor_of(from, 0, b)));
  Values short_values(3);
  expect_refused([&] { run(tensor_of(half, 0, short_values), tensor_of(from, 0, b)); },
                 {"grad_out has layout", "gradient_layouts()"});
  expect_refused([&] { run(tensor_of(to, 0, a), tensor_of(half, 0, short_values)); }, {"grad_in has layout"});
  expect_refused(
      [&] {
        run({to, a.data(), 20}, tensor_of(from, 0, b));
      },
      {"grad_out has 20 bytes on rank 0", "has 24"});
}

}  // namespace
}  // namespace cp::testing
