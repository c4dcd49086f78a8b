// Sequence sharding held against the references, element by element: what MindSpeed's functions do to tensors
// (sequence_reference.h) is compared with what the plans leave on the fabric. Oracle rows J1, J12 and J13.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/context_parallel/sequence.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/context_parallel/sequence_reference.h"
#include "tests/support/shard_data.h"

namespace cp::testing {
namespace {

// ---- the plans, run ----

// What the ranks hold after the redistribution, by position in the mesh. run_redistribution checks it too.
Tensors run(const Layout& from, const Layout& to, double scale, const Tensors& inputs) {
  const Redistribution planned = plan_redistribution(from, to);
  sim::RedistributeRunOptions options;
  options.scale = scale;
  EXPECT_NO_THROW(sim::run_redistribution(planned, options));
  Shards shards;
  std::vector<Plan> plans;
  const std::vector<Rank>& ranks = from.mesh.ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_EQ(local_shape(from, ranks[i]), inputs[i].shape) << "rank " << ranks[i];
    shards[ranks[i]] = inputs[i].values;
    plans.push_back(lower_scaled(planned, scale, ranks[i]));
  }
  const Shards results = run_plans(plans, shards);
  Tensors outputs;
  for (const Rank rank : ranks) outputs.push_back({local_shape(to, rank), results.at(rank)});
  return outputs;
}
Tensors run_forward(const SequenceMove& move, const Tensors& inputs) {
  return run(move.from, move.to, 1, inputs);
}
Tensors run_backward(const SequenceMove& move, const Tensors& inputs) {
  return run(move.to, move.from, move.grad_scale, inputs);
}

// The factor and the product are rounded to f32, once each.
void expect_near(const Tensors& got, const Tensors& expected) {
  constexpr double kTwoRoundings = 0x1.00001p-23;
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].shape, expected[i].shape) << "position " << i;
    for (std::size_t k = 0; k < got[i].values.size(); ++k) {
      const double value = expected[i].values[k];
      ASSERT_LE(std::abs(got[i].values[k] - value), kTwoRoundings * std::abs(value))
          << "position " << i << ", element " << k << ": " << got[i].values[k] << ", not " << value;
    }
  }
}

// `n` ranks in an order that is not ascending.
Mesh group_of(int n) {
  std::vector<Rank> ranks;
  for (int i = 0; i < n; ++i) ranks.push_back(n - i);
  return Mesh({{"cp", n}}, ranks);
}

Layout whole_on(const Mesh& mesh, const Shape& shape) {
  return make_layout(mesh, std::vector<Placement>(idx(mesh.num_axes()), Replicate{}), shape, DType::f32);
}

int from_front(int dim, const Shape& shape) { return dim < 0 ? dim + static_cast<int>(shape.size()) : dim; }

// One tensor for each rank, of its shape and with its own values.
Tensors examples(const Layout& layout, std::uint64_t seed) {
  Tensors tensors;
  for (const Rank rank : layout.mesh.ranks()) tensors.push_back(example(local_shape(layout, rank), ++seed));
  return tensors;
}

// ---- J13: sizes ----

TEST(SequenceOracle, J13SplitSizesAreBalanced) {
  const auto sizes = [](std::int64_t length, int n) {
    const Layout split = split_forward_gather_backward(whole_on(group_of(n), {length}), "cp", 0).to;
    Sizes result;
    for (const Rank rank : split.mesh.ranks()) result.push_back(local_shape(split, rank)[0]);
    return result;
  };
  EXPECT_EQ(sizes(5, 4), (Sizes{2, 1, 1, 1}));
  EXPECT_EQ(sizes(6, 4), (Sizes{2, 2, 1, 1}));
  for (const int n : {1, 2, 3, 7}) {
    for (std::int64_t length = 0; length < 3 * n + 2; ++length) {
      EXPECT_EQ(sizes(length, n), split_sizes(length, n)) << length << " on " << n;
    }
  }
}

// ---- all_to_all ----

struct AllToAllCase {
  Shape shape;
  int scatter_dim, gather_dim, n;
};
void PrintTo(const AllToAllCase& c, std::ostream* out) {
  *out << join(c.shape, "x") << ", scatter " << c.scatter_dim << ", gather " << c.gather_dim << " on " << c.n;
}
class SequenceAllToAll : public ::testing::TestWithParam<AllToAllCase> {};

TEST_P(SequenceAllToAll, IsTheReferencesThereAndBack) {
  const auto& [shape, scatter_dim, gather_dim, n] = GetParam();
  const int scatter = from_front(scatter_dim, shape), gather = from_front(gather_dim, shape);
  const std::int64_t gather_size = shape[idx(gather)];
  const Mesh mesh = group_of(n);
  const Tensors inputs = split(example(shape, 1), split_sizes(gather_size, n), gather);
  // Every rank finds the same layout from its own shape.
  std::vector<Layout> layouts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    layouts.push_back(
        layout_from_local(mesh, mesh.ranks()[i], "cp", gather_dim, inputs[i].shape, DType::f32, gather_size));
    EXPECT_EQ(layouts[i], layouts[0]);
  }
  const SequenceMove move = all_to_all(layouts[0], "cp", scatter_dim, gather_dim);
  const Tensors outputs = run_forward(move, inputs);
  EXPECT_EQ(outputs, all_to_all_of(inputs, scatter, gather));
  const Tensors gradients = examples(move.to, 7);
  EXPECT_EQ(run_backward(move, gradients), all_to_all_of(gradients, gather, scatter));
  EXPECT_EQ(run_backward(move, outputs), inputs);
}

INSTANTIATE_TEST_SUITE_P(Aligned, SequenceAllToAll,
                         ::testing::Values(AllToAllCase{{8, 4}, 1, 0, 4}, AllToAllCase{{8, 4}, 0, 1, 2},
                                           AllToAllCase{{2, 8, 4, 3}, 2, 1, 4},
                                           AllToAllCase{{2, 8, 4, 3}, 1, 2, 4},
                                           AllToAllCase{{2, 3, 4, 2, 6}, -1, -3, 2}));
INSTANTIATE_TEST_SUITE_P(PartlyUnaligned, SequenceAllToAll,
                         ::testing::Values(AllToAllCase{{8, 6}, 1, 0, 4}, AllToAllCase{{2, 7, 6}, 2, 1, 3},
                                           AllToAllCase{{2, 3, 5, 2, 4}, 0, 4, 2},
                                           AllToAllCase{{2, 3, 5, 2, 6}, -5, -1, 3}));
INSTANTIATE_TEST_SUITE_P(Unaligned, SequenceAllToAll,
                         ::testing::Values(AllToAllCase{{7, 5}, 1, 0, 4}, AllToAllCase{{5, 3, 7}, 0, -1, 2},
                                           AllToAllCase{{2, 11, 7, 3}, 2, 1, 3},
                                           AllToAllCase{{2, 9, 5, 3}, -2, -3, 4},
                                           AllToAllCase{{2, 9, 5, 3}, -3, 2, 4},
                                           AllToAllCase{{2, 3, 5, 2, 4}, 4, 2, 3}));
INSTANTIATE_TEST_SUITE_P(Small, SequenceAllToAll,
                         ::testing::Values(AllToAllCase{{3, 2}, 1, 0, 5}, AllToAllCase{{1, 4, 1}, 0, 1, 3},
                                           AllToAllCase{{0, 4}, 1, 0, 2}, AllToAllCase{{4, 0}, 1, 0, 2},
                                           AllToAllCase{{7, 5}, 0, 1, 1}));

// ---- split and gather ----

struct SplitCase {
  Shape shape;
  int dim, n;
  Sizes given;  // none: Balanced

  int front() const { return from_front(dim, shape); }
  Sizes sizes() const { return given.empty() ? split_sizes(shape[idx(front())], n) : given; }
  Split rule() const { return given.empty() ? Split(Balanced{}) : Split(Sized{given}); }
  Layout whole() const { return whole_on(group_of(n), shape); }
};
void PrintTo(const SplitCase& c, std::ostream* out) {
  *out << join(c.shape, "x") << ", dim " << c.dim << " on " << c.n << " as " << join(c.sizes(), "/");
}
class SequenceSplit : public ::testing::TestWithParam<SplitCase> {};

constexpr GradScale kScales[] = {GradScale::none, GradScale::up, GradScale::down};

Tensor scaled(const Tensor& tensor, GradScale scale, int n) {
  if (scale == GradScale::none) return tensor;
  return times(tensor, scale == GradScale::up ? n : 1.0 / n);
}

TEST_P(SequenceSplit, SplitsForwardAndGathersBackward) {
  const SplitCase& c = GetParam();
  const Tensor tensor = example(c.shape, 3);
  for (const GradScale scale : kScales) {
    const SequenceMove move = split_forward_gather_backward(c.whole(), "cp", c.dim, c.rule(), scale);
    EXPECT_EQ(run_forward(move, Tensors(idx(c.n), tensor)), split(tensor, c.sizes(), c.front()));
    const Tensors gradients = examples(move.to, 5);
    expect_near(run_backward(move, gradients),
                Tensors(idx(c.n), scaled(concatenated(gradients, c.front()), scale, c.n)));
  }
}

TEST_P(SequenceSplit, GathersForwardAndSplitsBackward) {
  const SplitCase& c = GetParam();
  const Layout input = split_forward_gather_backward(c.whole(), "cp", c.dim, c.rule()).to;
  const Tensor tensor = example(c.shape, 3);
  for (const GradScale scale : kScales) {
    const SequenceMove move = gather_forward_split_backward(input, "cp", scale);
    EXPECT_EQ(run_forward(move, split(tensor, c.sizes(), c.front())), Tensors(idx(c.n), tensor));
    // Each rank keeps its part of the gradient that it was given itself.
    const Tensors gradients = examples(move.to, 5);
    Tensors expected;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      expected.push_back(scaled(split(gradients[i], c.sizes(), c.front())[i], scale, c.n));
    expect_near(run_backward(move, gradients), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Even, SequenceSplit,
                         ::testing::Values(SplitCase{{8}, 0, 4, {}}, SplitCase{{7, 2}, 0, 1, {}},
                                           SplitCase{{3, 6}, -1, 3, {}},
                                           SplitCase{{2, 1, 3, 4, 2}, 3, 2, {}}));
INSTANTIATE_TEST_SUITE_P(Uneven, SequenceSplit,
                         ::testing::Values(SplitCase{{10}, 0, 4, {}}, SplitCase{{10}, -1, 4, {}},
                                           SplitCase{{3, 7}, 1, 3, {}}, SplitCase{{3, 7}, -2, 2, {}},
                                           SplitCase{{2, 9, 4}, 1, 4, {}}, SplitCase{{2, 3, 5, 2}, -2, 3, {}},
                                           SplitCase{{2, 1, 3, 2, 7}, 4, 3, {}},
                                           SplitCase{{5, 1, 3, 2, 2}, -5, 2, {}}, SplitCase{{2, 3}, 0, 5, {}},
                                           SplitCase{{0, 3}, 0, 2, {}}));
INSTANTIATE_TEST_SUITE_P(Sized, SequenceSplit,
                         ::testing::Values(SplitCase{{9}, 0, 3, {2, 6, 1}},
                                           SplitCase{{3, 9}, -1, 4, {0, 5, 0, 4}},
                                           SplitCase{{2, 6, 2}, 1, 2, {6, 0}}));

// ---- head-tail ----

TEST(SequenceOracle, J1HeadTailPermutation) {
  const SequenceMove in = split_forward_gather_backward(whole_on(group_of(2), {32}), "cp", 0, HeadTail{});
  Tensor positions{{32}, std::vector<double>(32)};
  std::iota(positions.values.begin(), positions.values.end(), 0);
  std::vector<double> expected;
  for (const int begin : {0, 24, 8, 16}) {
    for (int i = 0; i < 8; ++i) expected.push_back(begin + i);
  }
  EXPECT_EQ(concatenated(run_forward(in, {positions, positions}), 0).values, expected);
}

struct HeadTailCase {
  Shape shape;
  int dim, n;
};
void PrintTo(const HeadTailCase& c, std::ostream* out) {
  *out << join(c.shape, "x") << ", dim " << c.dim << " on " << c.n;
}
class SequenceHeadTail : public ::testing::TestWithParam<HeadTailCase> {};

TEST_P(SequenceHeadTail, J12RankRTakesChunkRAndItsMirrorImage) {
  const auto& [shape, dim, n] = GetParam();
  const int front = from_front(dim, shape);
  const std::int64_t length = shape[idx(front)];
  const Tensor tensor = example(shape, 2);
  const Tensors parts = ring_split(Ring::head_tail, tensor, n, front);
  EXPECT_EQ(ring_gather(Ring::head_tail, parts, length, front), tensor);  // the reference's own way back

  const SequenceMove in = split_forward_gather_backward(whole_on(group_of(n), shape), "cp", dim, HeadTail{});
  EXPECT_EQ(run_forward(in, Tensors(idx(n), tensor)), parts);
  const Tensors shard_gradients = examples(in.to, 5);
  const Tensor gathered = ring_gather(Ring::head_tail, shard_gradients, length, front);
  expect_near(run_backward(in, shard_gradients), Tensors(idx(n), times(gathered, 1.0 / n)));

  const SequenceMove out = gather_forward_split_backward(in.to, "cp");
  EXPECT_EQ(run_forward(out, parts), Tensors(idx(n), tensor));
  const Tensors gradients = examples(out.to, 9);
  Tensors expected;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    expected.push_back(times(ring_split(Ring::head_tail, gradients[i], n, front)[i], n));
  EXPECT_EQ(run_backward(out, gradients), expected);
}

INSTANTIATE_TEST_SUITE_P(Divisible, SequenceHeadTail,
                         ::testing::Values(HeadTailCase{{12}, 0, 3}, HeadTailCase{{8, 3}, 0, 2},
                                           HeadTailCase{{2, 8, 3}, 1, 2}, HeadTailCase{{2, 2, 8, 2}, -2, 4},
                                           HeadTailCase{{2, 1, 2, 2, 12}, -1, 3}));
INSTANTIATE_TEST_SUITE_P(OddLengths, SequenceHeadTail,
                         ::testing::Values(HeadTailCase{{13}, 0, 3}, HeadTailCase{{3, 7}, 1, 2},
                                           HeadTailCase{{2, 11, 2}, -2, 4}, HeadTailCase{{9, 2, 1, 2}, 0, 4},
                                           HeadTailCase{{2, 1, 2, 5, 2}, 3, 2}, HeadTailCase{{3}, 0, 4},
                                           HeadTailCase{{1, 2}, 0, 3}, HeadTailCase{{0}, 0, 2},
                                           HeadTailCase{{5, 2}, 0, 1}));

// ---- ring, then Ulysses; packed documents ----

struct ComposedCase {
  int ring_size, ulysses_degree;  // 0: no such axis is named
  Ring ring;
  Shape shape;
  int dim;
  Sizes documents;  // none: the sequence is one

  int front() const { return from_front(dim, shape); }
  SequenceAxes axes() const { return {ring_size > 0 ? "ring" : "", ulysses_degree > 0 ? "ulysses" : ""}; }
  Split rule() const {
    const bool head_tail = ring == Ring::head_tail;
    if (documents.empty()) return head_tail ? Split(HeadTail{}) : Split(Balanced{});
    return PerSequence{cu_seqlens_of(documents), head_tail ? InnerSplit(HeadTail{}) : InnerSplit(Balanced{})};
  }
  Mesh mesh(bool ulysses_inner) const {
    const MeshAxis r{"ring", std::max(1, ring_size)}, u{"ulysses", std::max(1, ulysses_degree)};
    std::vector<Rank> ranks(idx(r.size * u.size));
    std::iota(ranks.rbegin(), ranks.rend(), 0);
    return ulysses_inner ? Mesh({r, u}, ranks) : Mesh({u, r}, ranks);
  }
};

// What the reference leaves of a tensor, by ring index and Ulysses index: it splits in the group of the ring,
// then what is left in the group of Ulysses. Without a ring the whole packing is left.
std::vector<Tensors> nested_split(const ComposedCase& c, const Tensor& tensor) {
  Tensors by_ring = {tensor};
  if (c.ring_size > 0) {
    by_ring = c.documents.empty() ? ring_split(c.ring, tensor, c.ring_size, c.front())
                                  : packed_split(c.ring, tensor, c.documents, c.ring_size, c.front());
  }
  std::vector<Tensors> parts;
  for (const Tensor& part : by_ring) {
    const Sizes sizes = split_sizes(part.shape[idx(c.front())], std::max(1, c.ulysses_degree));
    parts.push_back(split(part, sizes, c.front()));
  }
  return parts;
}

Tensor nested_gather(const ComposedCase& c, const std::vector<Tensors>& parts) {
  Tensors by_ring;
  for (const Tensors& group : parts) by_ring.push_back(concatenated(group, c.front()));
  if (c.ring_size == 0) return by_ring.front();
  return c.documents.empty() ? ring_gather(c.ring, by_ring, c.shape[idx(c.front())], c.front())
                             : packed_gather(c.ring, by_ring, c.documents, c.front());
}

const Tensor& of_rank(const Mesh& mesh, Rank rank, const std::vector<Tensors>& parts) {
  return parts[idx(mesh.coordinate(rank, mesh.axis_index("ring")))]
              [idx(mesh.coordinate(rank, mesh.axis_index("ulysses")))];
}
Tensors on_mesh(const Mesh& mesh, const std::vector<Tensors>& parts) {
  Tensors tensors;
  for (const Rank rank : mesh.ranks()) tensors.push_back(of_rank(mesh, rank, parts));
  return tensors;
}

void expect_nested(const ComposedCase& c, const Mesh& mesh) {
  const double n = mesh.size();
  const Tensor tensor = example(c.shape, 4);
  const Tensors everywhere(idx(mesh.size()), tensor);
  const std::vector<Tensors> parts = nested_split(c, tensor);
  EXPECT_EQ(nested_gather(c, parts), tensor);  // the reference's own way back

  const SequenceMove in = split_ring_then_ulysses(whole_on(mesh, c.shape), c.axes(), c.dim, c.rule());
  EXPECT_EQ(run_forward(in, everywhere), on_mesh(mesh, parts));
  std::vector<Tensors> shard_gradients = parts;  // of these shapes
  std::uint64_t seed = 20;
  for (Tensors& group : shard_gradients) {
    for (Tensor& part : group) part = example(part.shape, ++seed);
  }
  const Tensor gathered = times(nested_gather(c, shard_gradients), 1 / n);
  expect_near(run_backward(in, on_mesh(mesh, shard_gradients)), Tensors(idx(mesh.size()), gathered));

  const SequenceMove out = gather_ulysses_then_ring(in.to, c.axes());
  EXPECT_EQ(run_forward(out, on_mesh(mesh, parts)), everywhere);
  const Tensors gradients = examples(out.to, 40);
  Tensors expected;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    expected.push_back(times(of_rank(mesh, mesh.ranks()[i], nested_split(c, gradients[i])), n));
  EXPECT_EQ(run_backward(out, gradients), expected);
}

void PrintTo(const ComposedCase& c, std::ostream* out) {
  *out << join(c.shape, "x") << ", dim " << c.dim << ", ring " << c.ring_size << " by " << to_string(c.rule())
       << ", ulysses " << c.ulysses_degree;
}
class SequenceComposed : public ::testing::TestWithParam<ComposedCase> {};

TEST_P(SequenceComposed, SplitsAndGathersAsNestedGroupsDo) {
  for (const bool ulysses_inner : {true, false}) {
    SCOPED_TRACE(ulysses_inner ? "Ulysses inner" : "ring inner");
    expect_nested(GetParam(), GetParam().mesh(ulysses_inner));
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, SequenceComposed,
                         ::testing::Values(ComposedCase{2, 2, Ring::head_tail, {16, 3}, 0, {}},
                                           ComposedCase{2, 3, Ring::head_tail, {2, 24, 2}, 1, {}},
                                           ComposedCase{3, 2, Ring::head_tail, {2, 17}, -1, {}},
                                           ComposedCase{2, 2, Ring::head_tail, {1, 2, 13, 1, 2}, -3, {}},
                                           ComposedCase{3, 2, Ring::balanced, {11}, 0, {}},
                                           ComposedCase{
                                               4, 2, Ring::head_tail, {3, 5}, 1, {}},  // empty shards
                                           ComposedCase{3, 0, Ring::head_tail, {14, 2}, 0, {}},
                                           ComposedCase{0, 3, Ring::head_tail, {14, 2}, 0, {}},
                                           ComposedCase{1, 3, Ring::head_tail, {7}, 0, {}},
                                           ComposedCase{3, 1, Ring::head_tail, {7}, 0, {}}));

INSTANTIATE_TEST_SUITE_P(
    Packed, SequenceComposed,
    ::testing::Values(ComposedCase{2, 2, Ring::balanced, {16, 3}, 0, {8, 4, 4}},
                      ComposedCase{2, 3, Ring::balanced, {2, 23, 2}, 1, {10, 1, 12}},
                      ComposedCase{3, 2, Ring::balanced, {23}, -1, {5, 0, 2, 0, 16}},  // empty documents
                      ComposedCase{
                          4, 2, Ring::balanced, {2, 6}, 1, {1, 1, 1, 0, 3}},  // shorter than the ring
                      ComposedCase{3, 0, Ring::balanced, {14, 2}, 0, {3, 11}},
                      ComposedCase{0, 3, Ring::balanced, {14, 2}, 0, {3, 11}},
                      ComposedCase{2, 2, Ring::balanced, {1, 2, 9, 1, 2}, 2, {4, 5}},
                      ComposedCase{2, 2, Ring::head_tail, {27, 2}, 0, {16, 0, 11}},
                      ComposedCase{3, 2, Ring::head_tail, {2, 19}, -1, {7, 1, 11}},
                      ComposedCase{2, 2, Ring::balanced, {0, 3}, 0, {0, 0}}));

// ---- packed documents of any sizes ----

struct SizesCase {
  SizeMatrix all_split_sizes;  // [rank][sequence]
  Shape shape;                 // of the whole packing
  int dim;
};
void PrintTo(const SizesCase& c, std::ostream* out) {
  *out << join(c.shape, "x") << ", dim " << c.dim << ", by "
       << to_string(Split(packed_sizes(c.all_split_sizes)));
}

void expect_packed(const SizesCase& c, GradScale scale) {
  const auto& [sizes, shape, dim] = c;
  const int n = static_cast<int>(sizes.size()), front = from_front(dim, shape);
  const double factor = scale == GradScale::none ? 1 : scale == GradScale::up ? n : 1.0 / n;
  const Mesh mesh = group_of(n);
  const Tensor packing = example(shape, 3);
  const Tensors shards = packed_split(packing, sizes, front);
  ASSERT_EQ(packed_gather(shards, sizes, front), packing) << "the reference's own way back";

  // Every rank finds the same layout from its own shape.
  std::vector<Layout> layouts;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    layouts.push_back(
        layout_from_local(mesh, mesh.ranks()[i], "cp", dim, shards[i].shape, DType::f32, sizes));
    EXPECT_EQ(layouts[i], layouts[0]);
  }
  const SequenceMove out = gather_forward_split_backward(layouts[0], "cp", scale);
  EXPECT_EQ(run_forward(out, shards), Tensors(idx(n), packing));
  const Tensors gradients = examples(out.to, 9);  // other values on each rank
  Tensors expected;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    expected.push_back(times(packed_split(gradients[i], sizes, front)[i], factor));
  expect_near(run_backward(out, gradients), expected);

  const SequenceMove in =
      split_forward_gather_backward(whole_on(mesh, shape), "cp", dim, packed_sizes(sizes), scale);
  EXPECT_EQ(in.to, layouts[0]);
  EXPECT_EQ(run_forward(in, Tensors(idx(n), packing)), shards);
  const Tensors shard_gradients = examples(in.to, 30);
  const Tensor gathered = times(packed_gather(shard_gradients, sizes, front), factor);
  expect_near(run_backward(in, shard_gradients), Tensors(idx(n), gathered));
}

class SequencePackedSizes : public ::testing::TestWithParam<SizesCase> {};

TEST_P(SequencePackedSizes, GatherAndSplitAsTheReferenceByItsMatrix) {
  for (const GradScale scale : {GradScale::up, GradScale::down, GradScale::none}) {
    SCOPED_TRACE(str("scale ", static_cast<int>(scale)));
    expect_packed(GetParam(), scale);
  }
}

INSTANTIATE_TEST_SUITE_P(
    AnySizes, SequencePackedSizes,
    ::testing::Values(SizesCase{{{3, 1}, {1, 4}}, {9, 2}, 0}, SizesCase{{{3}, {1}, {5}}, {9}, -1},
                      SizesCase{{{0, 4, 1}, {5, 0, 0}, {2, 3, 0}}, {2, 15, 2}, 1},  // pieces without elements
                      SizesCase{{{0, 0}, {6, 2}}, {8, 3}, 0},                       // a rank without elements
                      SizesCase{{{2, 0, 3}, {1, 0, 1}}, {1, 2, 7}, -1},  // a sequence without elements
                      SizesCase{{{4, 2, 9}}, {15}, 0},                   // one rank
                      SizesCase{{{0}, {0}}, {0, 2}, 0}, SizesCase{{{}, {}, {}}, {0}, 0},
                      // What cal_split_sizes_multi gives, and the same to the last ranks first.
                      SizesCase{{{3, 2, 1}, {2, 2, 1}, {2, 1, 0}}, {14, 2}, 0},
                      SizesCase{{{2, 1, 0}, {2, 2, 1}, {3, 2, 1}}, {2, 14}, 1}));

// The matrix of balanced sizes is the balanced split of each sequence, which hybrid splits compose with
// Ulysses.
TEST(SequenceOracle, AMatrixOfBalancedSizesIsTheBalancedSplit) {
  const Sizes lengths = {10, 1, 12};
  SizeMatrix sizes(2);
  for (const std::int64_t length : lengths) {
    for (std::size_t r = 0; r < sizes.size(); ++r) sizes[r].push_back(split_sizes(length, 2)[r]);
  }
  const Layout whole = whole_on(Mesh::parse("ring=2,ulysses=3"), {2, 23});
  const SequenceAxes axes{"ring", "ulysses"};
  const SequenceMove by_rule =
      split_ring_then_ulysses(whole, axes, 1, PerSequence{cu_seqlens_of(lengths), Balanced{}});
  const SequenceMove by_matrix = split_ring_then_ulysses(whole, axes, 1, packed_sizes(sizes));
  EXPECT_TRUE(equivalent(by_rule.to, by_matrix.to));
  EXPECT_NO_THROW(sim::run_redistribution(plan_redistribution(by_matrix.from, by_matrix.to)));
  const SequenceMove out = gather_ulysses_then_ring(by_matrix.to, axes);
  EXPECT_NO_THROW(sim::run_redistribution(plan_redistribution(out.from, out.to)));
}

// ---- groups of a larger mesh ----

// Batches over dp, and each dp rank's sequences over cp: each group of cp ranks works on its own tensor.
TEST(SequenceOracle, EveryGroupOfAnAxisWorksOnItsOwnTensor) {
  const Mesh mesh = Mesh::parse("dp=2,cp=3");
  const Layout batches = parse_layout("S(0),R", mesh, {4, 7, 5}, DType::f32);
  const SequenceMove in = split_forward_gather_backward(batches, "cp", 1, HeadTail{});
  Tensors inputs, expected;
  for (const Tensor& part : split(example({4, 7, 5}, 6), {2, 2}, 0)) {
    for (const Tensor& shard : ring_split(Ring::head_tail, part, 3, 1)) expected.push_back(shard);
    for (int i = 0; i < 3; ++i) inputs.push_back(part);
  }
  EXPECT_EQ(run_forward(in, inputs), expected);
  EXPECT_EQ(run_forward(gather_forward_split_backward(in.to, "cp"), expected), inputs);
}

// Ulysses within a ring: the rows of the whole Ulysses group for a share of the heads, in the ring's order.
TEST(SequenceOracle, UlyssesTradesTheRingsRowsForHeads) {
  const Layout whole = whole_on(Mesh::parse("ring=2,ulysses=3"), {13, 7, 2});
  const SequenceMove in = split_ring_then_ulysses(whole, {"ring", "ulysses"}, 0, HeadTail{});
  Tensors inputs, expected;
  for (const Tensor& rows : ring_split(Ring::head_tail, example({13, 7, 2}, 8), 2, 0)) {
    const Tensors shards = split(rows, split_sizes(rows.shape[0], 3), 0);
    for (const Tensor& shard : shards) inputs.push_back(shard);
    for (const Tensor& heads : all_to_all_of(shards, 1, 0)) expected.push_back(heads);
  }
  const SequenceMove heads = all_to_all(in.to, "ulysses", 1, 0);
  EXPECT_EQ(run_forward(heads, inputs), expected);
  EXPECT_EQ(run_backward(heads, expected), inputs);
}

// ---- PyTorch's context_parallel ----

TEST(SequenceOracle, BuffersAreShardedEachAlongItsOwnDimensionAndRestored) {
  const Mesh mesh = group_of(3);
  const std::vector<Shape> shapes = {{2, 12}, {12}, {2, 4, 12, 3}, {1, 12, 2}, {2, 13}};
  const std::vector<int> seq_dims = {1, 0, -2, 1, -1};
  std::vector<SequenceBuffer> buffers;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    buffers.push_back({whole_on(mesh, shapes[i]), seq_dims[i]});
    buffers.back().layout.dtype = i == 0 ? DType::i64 : DType::f32;
  }
  const SequenceAxes axes{.ring = "cp", .ulysses = ""};
  const std::vector<SequenceMove> sharded = shard_buffers(buffers, axes, HeadTail{});
  ASSERT_EQ(sharded.size(), buffers.size());
  std::vector<Layout> shards;
  for (const SequenceMove& move : sharded) shards.push_back(move.to);
  const std::vector<SequenceMove> restored = unshard_buffers(shards, axes);
  ASSERT_EQ(restored.size(), buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    SCOPED_TRACE(str("buffer ", i));
    const Tensor tensor = example(shapes[i], i);
    const Tensors parts = ring_split(Ring::head_tail, tensor, 3, from_front(seq_dims[i], shapes[i]));
    EXPECT_EQ(run_forward(sharded[i], Tensors(3, tensor)), parts);
    EXPECT_EQ(restored[i].to, buffers[i].layout);
    EXPECT_EQ(run_forward(restored[i], parts), Tensors(3, tensor));
  }
}

}  // namespace
}  // namespace cp::testing
