// Sequence sharding: what moves, errors, and the properties of every split, length and rank of tensor.
#include "shared/context_parallel/sequence.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/context_parallel/sharding.h"
#include "shared/plan/check.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/mesh/mesh_testing.h"
#include "tests/placement/split_generator.h"
#include "tests/support/any_case.h"
#include "tests/support/shard_data.h"

namespace cp::testing {
namespace {

Layout layout_on(const char* mesh, const char* placements, const Shape& shape, DType dtype = DType::f32) {
  return parse_layout(placements, Mesh::parse(mesh), shape, dtype);
}

AttentionProblem problem_of_documents(std::int64_t length, std::vector<std::int64_t> cu_seqlens = {}) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = length;
  problem.cu_seqlens = std::move(cu_seqlens);
  return problem;
}

// The kinds of the moves that communicate, in order.
std::string communications(const Redistribution& planned) {
  std::vector<std::string_view> kinds;
  for (const RedistributionStep& step : planned.steps) {
    if (step.move.kind != MoveKind::slice) kinds.push_back(name(step.move.kind));
  }
  return join(kinds, " ");
}

std::string forward_of(const SequenceMove& move) {
  return communications(plan_redistribution(move.from, move.to));
}
std::string backward_of(const SequenceMove& move) {
  return communications(plan_redistribution(move.to, move.from));
}

// ---- what moves ----

TEST(SequenceMoves, ASplitIsLocalAndItsGradientOneAllGather) {
  const SequenceMove move = split_forward_gather_backward(layout_on("cp=4", "R", {2, 8, 3}), "cp", 1);
  EXPECT_EQ(move.to, layout_on("cp=4", "S(1,balanced)", {2, 8, 3}));
  EXPECT_EQ(forward_of(move), "");
  EXPECT_EQ(backward_of(move), "all_gather");
}

TEST(SequenceMoves, AGatherIsOneAllGatherAndItsGradientLocal) {
  const SequenceMove move = gather_forward_split_backward(layout_on("cp=4", "S(1,head_tail)", {2, 8}), "cp");
  EXPECT_EQ(move.to, layout_on("cp=4", "R", {2, 8}));
  EXPECT_EQ(forward_of(move), "all_gather");
  EXPECT_EQ(backward_of(move), "");
}

TEST(SequenceMoves, AnAllToAllIsOneAllToAllBothWays) {
  const SequenceMove move = all_to_all(layout_on("cp=4", "S(1,balanced)", {2, 8, 12}), "cp", -1, -2);
  EXPECT_EQ(move.to, layout_on("cp=4", "S(2,balanced)", {2, 8, 12}));
  EXPECT_EQ(forward_of(move), "all_to_all");
  EXPECT_EQ(backward_of(move), "all_to_all");
  EXPECT_EQ(move.grad_scale, 1);
}

TEST(SequenceMoves, RingThenUlyssesIsOneLocalMoveAndOneGather) {
  const Layout input = layout_on("ring=2,ulysses=3", "R,R", {24, 5});
  const SequenceMove in = split_ring_then_ulysses(input, {"ring", "ulysses"}, 0, HeadTail{});
  EXPECT_EQ(in.to, layout_on("ring=2,ulysses=3", "S(0,head_tail),S(0,balanced)", {24, 5}));
  EXPECT_EQ(forward_of(in), "");
  EXPECT_EQ(plan_redistribution(in.to, in.from).steps.size(), 1U);
  const SequenceMove out = gather_ulysses_then_ring(in.to, {"ring", "ulysses"});
  EXPECT_EQ(out.to, input);
  EXPECT_EQ(backward_of(out), "");
}

TEST(SequenceMoves, TheRingSplitsFirstWhereverItsAxisIs) {
  const SequenceMove in =
      split_ring_then_ulysses(layout_on("ulysses=3,ring=2", "R,R", {24}), {"ring", "ulysses"}, 0, HeadTail{});
  EXPECT_EQ(in.to, layout_on("ulysses=3,ring=2", "S(0,balanced)[1],S(0,head_tail)[0]", {24}));
}

TEST(SequenceMoves, OtherAxesKeepWhatTheyHold) {
  const Layout input = layout_on("dp=2,cp=2,tp=2", "S(0),R,S(2)", {4, 6, 8});
  const SequenceMove in = split_forward_gather_backward(input, "cp", 1, Striped{2});
  EXPECT_EQ(in.to, layout_on("dp=2,cp=2,tp=2", "S(0),S(1,striped:2),S(2)", {4, 6, 8}));
  // tp has split the heads before cp splits what is left of them.
  EXPECT_EQ(all_to_all(in.to, "cp", 2, 1).to,
            layout_on("dp=2,cp=2,tp=2", "S(0),S(2,balanced)[1],S(2)[0]", {4, 6, 8}));
  EXPECT_EQ(gather_forward_split_backward(in.to, "cp").to, input);
}

TEST(SequenceMoves, ThenJoinsTwoMovesAndTheirScales) {
  const Layout input = layout_on("a=2,b=4", "R,R", {16});
  const SequenceMove first = split_forward_gather_backward(input, "a", 0);
  const SequenceMove second = split_forward_gather_backward(first.to, "b", 0, Balanced{}, GradScale::up);
  const SequenceMove both = then(first, second);
  EXPECT_EQ(both.from, input);
  EXPECT_EQ(both.to, second.to);
  EXPECT_EQ(both.grad_scale, 4.0 / 2);
}

// ---- balances ----

TEST(SequenceSplitOf, ABalanceIsThatOfTheQueriesHome) {
  const AttentionProblem whole = problem_of_documents(24);
  const AttentionProblem packed = problem_of_documents(24, {0, 10, 20});
  const auto split_of = [](const AttentionProblem& problem, const char* balance) {
    return to_string(sequence_split(problem, parse_balance(balance), 3));
  };
  EXPECT_EQ(split_of(whole, "contiguous"), "balanced");
  EXPECT_EQ(split_of(whole, "head_tail"), "head_tail");
  EXPECT_EQ(split_of(whole, "head_tail_exchange"), "balanced");  // at home; Q moves when it computes
  EXPECT_EQ(split_of(whole, "striped:4"), "striped:4");
  // What lies behind the last document is one of its own.
  EXPECT_EQ(split_of(packed, "per_document:head_tail"), "per_sequence:0/10/20/24:head_tail");
  EXPECT_EQ(split_of(packed, "head_tail"), "head_tail");
}

// 10 queries at the end of 24 keys: cuts are positions among the rows that are split.
TEST(SequenceSplitOf, QueriesAndKeysAreCutWhereTheirDocumentsEnd) {
  AttentionProblem problem = problem_of_documents(24, {0, 10, 20});
  problem.q_len = 10;
  const Balance balance = parse_balance("per_document:contiguous");
  EXPECT_EQ(to_string(sequence_split(problem, balance, 2)), "per_sequence:0/6/10:balanced");
  EXPECT_EQ(to_string(sequence_split(problem, balance, 2, false)), "per_sequence:0/10/20/24:balanced");
}

// Token ids lie where attention wants the queries that are made of them, whatever the balance.
TEST(SequenceSplitOf, BuffersLieWhereTheQueriesDo) {
  AttentionProblem problem = problem_of_documents(29, {0, 3, 20, 27});
  problem.batch = 2;
  problem.q_heads = 4;
  problem.causal = true;
  Strategy strategy;
  strategy.ulysses_degree = 2;
  const std::vector<Rank> ranks = {0, 1, 2, 3, 4, 5};
  for (const char* balance :
       {"contiguous", "head_tail", "striped:4", "cost:3", "head_tail_exchange", "per_document:contiguous",
        "per_document:head_tail", "per_document:striped:2"}) {
    SCOPED_TRACE(balance);
    strategy.balance = parse_balance(balance);
    const Layout home = home_layout(problem, ranks, strategy, true, 8);
    const SequenceMove tokens =
        split_ring_then_ulysses(layout_on("ring=3,ulysses=2", "R,R", {2, 29}, DType::i64),
                                {"ring", "ulysses"}, 1, sequence_split(problem, strategy.balance, 3));
    for (const Rank rank : ranks) EXPECT_EQ(indices(tokens.to, 1, rank), indices(home, 1, rank));
  }
}

TEST(SequenceSplitOf, DocumentsAreCumulated) {
  EXPECT_EQ(cu_seqlens_of({}), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(cu_seqlens_of(std::vector<std::int64_t>{10, 0, 40}), (std::vector<std::int64_t>{0, 10, 10, 50}));
}

// ---- plans ----

TEST(SequencePlans, AScaledPlanIsALowerPlanAndAFactorInIt) {
  const SequenceMove in = split_forward_gather_backward(layout_on("cp=2", "R", {6}), "cp", 0);
  const Redistribution backward = plan_redistribution(in.to, in.from);
  std::vector<Plan> plans, unscaled;
  for (const Rank rank : {0, 1}) {
    plans.push_back(lower_scaled(backward, in.grad_scale, rank));
    unscaled.push_back(lower_scaled(backward, 1, rank));
    EXPECT_EQ(plans.back().buffers.size(), 2U);  // no memory of its own
  }
  EXPECT_NO_THROW(check(plans));
  EXPECT_NE(plans[0].inputs, unscaled[0].inputs);  // ranks that scale differently are told apart
  const std::vector<StepRef> steps = steps_of(plans[0]);
  EXPECT_EQ(steps_of(unscaled[0]).size() + 1, steps.size());
  EXPECT_TRUE(std::holds_alternative<Kernel>(steps.back().step->work));
}

TEST(SequencePlans, IntegersAreNotScaled) {
  const SequenceMove in = split_forward_gather_backward(layout_on("cp=2", "R", {6}, DType::i64), "cp", 0);
  const Redistribution backward = plan_redistribution(in.to, in.from);
  EXPECT_NO_THROW(lower_scaled(backward, 1, 0));
  expect_refused([&] { lower_scaled(backward, in.grad_scale, 0); }, {"i64", "0.5", "GradScale::none"});
}

// What redistribute_backward() takes of a move is the redistribution back, times its factor.
TEST(SequencePlans, AMovesGradientIsItsWayBackTimesItsFactor) {
  const Layout whole = layout_on("ring=2,ulysses=3", "R,R", {13, 2});
  for (const GradScale scale : {GradScale::up, GradScale::down, GradScale::none}) {
    const SequenceMove in = split_ring_then_ulysses(whole, {"ring", "ulysses"}, 0, HeadTail{}, scale);
    const SequenceMove out = gather_ulysses_then_ring(in.to, {"ring", "ulysses"}, scale);
    for (const SequenceMove& move : {in, out}) {
      const Gradient gradient = plan_gradient(move.from, move.to, gradient_options(move));
      EXPECT_EQ(gradient.redistribution.source, move.to);
      EXPECT_EQ(gradient.redistribution.target, move.from);
      EXPECT_EQ(gradient.scale, move.grad_scale);
      // 1/2 x 1/3 and 1/6 may differ in the last place.
      EXPECT_NEAR(grad_scale_factor(scale, move.from, move.to), move.grad_scale, 0x1p-51 * move.grad_scale);
    }
  }
}

// ---- errors ----

TEST(SequenceErrors, OfDims) {
  const Layout input = layout_on("cp=2", "R", {6, 4});
  expect_refused([&] { split_forward_gather_backward(input, "cp", 2); },
                 {"dim=2 is out of range for the shape 6x4", "use -2 .. 1"});
  expect_refused([&] { split_forward_gather_backward(input, "cp", -3); }, {"dim=-3", "use -2 .. 1"});
  expect_refused([&] { split_forward_gather_backward(layout_on("cp=2", "R", {}), "cp", 0); },
                 {"dim=0", "scalar"});
  const Layout sharded = layout_on("cp=2", "S(0,balanced)", {6, 4});
  expect_refused([&] { all_to_all(sharded, "cp", 2, 0); }, {"scatter_dim=2 is out of range"});
  expect_refused([&] { all_to_all(sharded, "cp", 1, 5); }, {"gather_dim=5 is out of range"});
  expect_refused([&] { all_to_all(sharded, "cp", -2, 0); },
                 {"scatter_dim=-2 and gather_dim=0 are the same dimension", "6x4"});
}

TEST(SequenceErrors, OfAxes) {
  const Layout input = layout_on("a=2,b=3", "R,R", {6, 4});
  expect_refused([&] { split_forward_gather_backward(input, "cp", 0); }, {"'cp' is not an axis", "a=2,b=3"});
  expect_refused([&] { gather_forward_split_backward(input, "a"); },
                 {"axis a of R,R is replicated", "nothing to gather"});
  expect_refused([&] { all_to_all(input, "a", 0, 1); },
                 {"axis a of R,R does not split gather_dim=1", "replicated"});
  expect_refused([&] { split_ring_then_ulysses(input, {}, 0, HeadTail{}); }, {"neither", "a=2,b=3"});
  expect_refused([&] { gather_ulysses_then_ring(input, {}); }, {"neither", "a=2,b=3"});

  const Layout rows = layout_on("a=2,b=3", "S(0),R", {6, 4});
  expect_refused([&] { split_forward_gather_backward(rows, "a", 1); },
                 {"axis a of S(0),R already splits dimension 0", "all_to_all"});
  expect_refused([&] { all_to_all(rows, "a", 0, 1); },
                 {"does not split gather_dim=1", "splits dimension 0; gather that one"});

  const Layout nested = layout_on("a=2,b=3", "S(0),S(0)", {6, 4});
  expect_refused([&] { gather_forward_split_backward(nested, "a"); },
                 {"splits dimension 0 before axis b", "gather b first"});
  expect_refused([&] { all_to_all(nested, "a", 1, 0); }, {"before axis b", "gather b first"});
  expect_refused([&] { gather_ulysses_then_ring(nested, {"b", "a"}); }, {"before axis b"});

  const Layout heads = layout_on("a=2,b=3", "S(0),S(1)", {6, 4});
  expect_refused(
      [&] {
        gather_ulysses_then_ring(heads, {"a", "b"});
      },
      {"axis b splits dimension 1 and axis a dimension 0", "all_to_all"});
  expect_refused(
      [&] {
        then(split_forward_gather_backward(input, "a", 0), split_forward_gather_backward(input, "b", 0));
      },
      {"cannot be followed", "S(0,balanced),R"});
}

TEST(SequenceErrors, OfSizesAndDocuments) {
  const Layout input = layout_on("cp=3", "R", {2, 10});
  const auto split_by = [&](const Split& split) {
    return [&input, split] { split_forward_gather_backward(input, "cp", 1, split); };
  };
  expect_refused(split_by(Sized{{4, 4, 4}}), {"axis cp", "dimension 1 of size 10", "4/4/4", "4/3/3"});
  expect_refused(split_by(Sized{{5, 5}}), {"5/5", "2 ranks", "the axis has 3"});
  expect_refused(split_by(Sized{{12, -1, -1}}), {"12/-1/-1"});
  expect_refused(split_by(Striped{0}), {"striped:0"});
  expect_refused(split_by(PerSequence{{0, 4, 9}, Balanced{}}), {"0/4/9", "end with 9", "10 elements"});
  expect_refused([] { cu_seqlens_of(std::vector<std::int64_t>{4, -2}); }, {"document 1 has length -2"});
  expect_refused(
      [] {
        cu_seqlens_of(std::vector<std::int64_t>{1, std::numeric_limits<std::int64_t>::max()});
      },
      {"2^63"});
}

TEST(SequenceErrors, OfSizesOfPackedSequences) {
  using Matrix = std::vector<std::vector<std::int64_t>>;
  const auto packed = [](const Matrix& sizes) { return [sizes] { packed_sizes(sizes); }; };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  expect_refused(packed({}), {"no rows"});
  expect_refused(packed({{1, 2}, {3}}), {"1 sequences in row 1 and 2 in row 0", "0 where it holds nothing"});
  expect_refused(packed({{1, 2}, {3, -1}}), {"all_split_sizes[1][1]=-1"});
  expect_refused(packed({{kMost}, {1}}), {"sequence 0", "2^63"});
  expect_refused(packed({{kMost, 1}, {0, 0}}), {"2^63"});  // the packing
  const auto local = [](const Matrix& sizes, std::int64_t size, int dim) {
    return [=] { layout_from_local(Mesh::parse("cp=2"), 1, "cp", dim, {2, size}, DType::f32, sizes); };
  };
  EXPECT_NO_THROW(local({{1, 2}, {3, 0}}, 3, -1)());
  expect_refused(local({{1, 2}, {3, 0}}, 2, 1), {"rank 1", "has 2 along dimension 1", "sums to 3"});
  expect_refused(local({{1, 2}}, 3, 1), {"has 1 rows, but axis cp has 2 ranks"});
  expect_refused(local({{1, 2}, {3, 0}}, 3, 2), {"dim=2 is out of range"});
}

TEST(SequenceErrors, OfLocalShapes) {
  const Mesh mesh = Mesh::parse("cp=4");
  const auto layout = [&](Rank rank, std::int64_t local, std::optional<std::int64_t> gather_size) {
    return layout_from_local(mesh, rank, "cp", 1, {2, local}, DType::f32, gather_size);
  };
  EXPECT_EQ(layout(0, 4, 13).shape, (Shape{2, 13}));
  expect_refused([&] { layout(1, 4, 13); },
                 {"rank 1", "index 1 of the 4 on axis cp", "has 4 along dimension 1", "gather_size=13 is 3"});
  expect_refused([&] { layout(7, 4, 16); }, {"rank 7"});
  expect_refused([&] { layout(0, std::int64_t{1} << 62, {}); }, {"2^63"});
  expect_refused([&] { layout(0, 4, -1); }, {"negative"});
}

TEST(SequenceErrors, OfPartialValues) {
  const Layout input = layout_on("cp=2,tp=2", "R,P(sum)", {6, 4});
  expect_refused([&] { split_forward_gather_backward(input, "cp", 0); }, {"axis tp", "reduce"});
  const Layout sharded = layout_on("cp=2,tp=2", "S(0),P(sum)", {6, 4});
  expect_refused([&] { gather_forward_split_backward(sharded, "cp"); }, {"axis tp", "reduce"});
  expect_refused([&] { all_to_all(sharded, "cp", 1, 0); }, {"axis tp", "reduce"});
}

TEST(SequenceErrors, OfBalances) {
  const AttentionProblem problem = problem_of_documents(8);
  Balance balance = parse_balance("cost:4");
  balance.block = 0;
  expect_refused([&] { sequence_split(problem, balance, 2); }, {"block below 1"});
  expect_refused([&] { sequence_split(problem, {}, 0); }, {"cp=0"});
}

TEST(SequenceErrors, SayWhichBufferIsMeant) {
  const std::vector<SequenceBuffer> buffers = {{layout_on("cp=2", "R", {6}), 0},
                                               {layout_on("cp=2", "R", {6, 2}), 3}};
  expect_refused([&] { shard_buffers(buffers, {"cp", ""}, HeadTail{}); }, {"buffer 1: dim=3"});
  const std::vector<Layout> whole = {layout_on("cp=2", "R", {6})};
  expect_refused([&] { unshard_buffers(whole, {"cp", ""}); }, {"buffer 0: axis cp of R is replicated"});
}

// ---- properties ----

// A tensor of 1 to 5 dimensions, replicated over a ring and a Ulysses axis in either order, and its sequence.
struct AnySequence {
  Layout whole;
  SequenceAxes axes;
  int dim;
  std::int64_t length() const {
    return whole.shape[idx(dim < 0 ? dim + static_cast<int>(whole.shape.size()) : dim)];
  }
};

void showValue(const AnySequence& sequence, std::ostream& out) {
  out << to_string(sequence.whole) << ", dim " << sequence.dim << ", ring '" << sequence.axes.ring
      << "', ulysses '" << sequence.axes.ulysses << "'";
}

AnySequence any_sequence(DType dtype) {
  return pick_case("sequence", [=] {
    const MeshAxis ring{"ring", *any_int(1, 4)}, ulysses{"ulysses", *any_int(1, 3)};
    std::vector<Rank> ranks =
        *rc::gen::unique<std::vector<Rank>>(idx(ring.size * ulysses.size), any_int(0, 15));
    const bool ulysses_inner = *rc::gen::arbitrary<bool>();
    const Mesh mesh = ulysses_inner ? Mesh({ring, ulysses}, ranks) : Mesh({ulysses, ring}, ranks);
    const int num_dims = *any_int(1, 5);
    Shape shape;
    for (int i = 0; i < num_dims; ++i) shape.push_back(*any_int(1, 3));
    const int dim = *any_int(0, num_dims - 1);
    shape[idx(dim)] = *any_int(0, 30);
    AnySequence sequence{
        make_layout(mesh, {Replicate{}, Replicate{}}, shape, dtype), {"ring", "ulysses"}, dim};
    if (*rc::gen::arbitrary<bool>()) sequence.dim -= num_dims;
    const int absent = *any_int(0, 3);
    if (absent == 0) sequence.axes.ring.clear();
    if (absent == 1) sequence.axes.ulysses.clear();
    return sequence;
  });
}

Balance any_balance() {
  Balance balance = parse_balance(*rc::gen::element<std::string>(
      "contiguous", "head_tail", "striped", "cost", "head_tail_exchange", "per_document:contiguous",
      "per_document:head_tail", "per_document:striped"));
  balance.block = *any_int(1, 6);
  return balance;
}

Split any_ring_split(const AnySequence& sequence) {
  return pick_case("split", [=] {
    AttentionProblem problem = problem_of_documents(sequence.length());
    problem.causal = *rc::gen::arbitrary<bool>();
    if (*rc::gen::arbitrary<bool>()) problem.cu_seqlens = random_cuts(problem.q_len, *any_int(0, 5));
    const Mesh& mesh = sequence.whole.mesh;
    return sequence_split(problem, any_balance(), mesh.axis_size(mesh.axis_index("ring")));
  });
}

Shards run_scaled(const Redistribution& planned, double scale, const Shards& inputs) {
  std::vector<Plan> plans;
  for (const Rank rank : planned.source.mesh.ranks()) plans.push_back(lower_scaled(planned, scale, rank));
  check(plans);
  return run_plans(plans, inputs);
}

RC_GTEST_PROP(SequenceProperty, UnshardingAShardGivesTheTensor, ()) {
  const AnySequence sequence =
      any_sequence(pick("dtype", rc::gen::element(DType::f32, DType::i64, DType::bf16)));
  const Split ring_split = any_ring_split(sequence);
  const std::vector<SequenceBuffer> buffers = {{sequence.whole, sequence.dim}};
  const SequenceMove in = shard_buffers(buffers, sequence.axes, ring_split).front();
  const std::vector<Layout> shards = {in.to};
  const SequenceMove out = unshard_buffers(shards, sequence.axes).front();
  RC_LOG() << to_string(in.from) << " -> " << to_string(in.to) << "\n";
  const Shards tensor =
      make_shards(sequence.whole, [](std::int64_t element) { return small_integer(1, element, 0, 100); });
  const Shards sharded = run_scaled(plan_redistribution(in.from, in.to), 1, tensor);
  // Each rank of a copy's axis holds the same; without copies the shards are just as large as the tensor.
  if (!sequence.axes.ring.empty() && !sequence.axes.ulysses.empty()) {
    std::size_t held = 0;
    for (const auto& [rank, shard] : sharded) held += shard.size();
    RC_ASSERT(held == idx(numel(sequence.whole.shape)));
  }
  RC_ASSERT(run_scaled(plan_redistribution(out.from, out.to), 1, sharded) == tensor);
}

// Small integers, so that all sums are exact, and the same for all copies of an element.
Shards integers(const Layout& layout, std::uint64_t seed) {
  return make_shards(layout, [seed](std::int64_t element) { return small_integer(seed, element, 0, 8); });
}

// The inner product with every copy counted, or with each element counted once.
double product(const Shards& a, const Shards& b, double copies) { return inner_product(a, b) / copies; }

// <R x, y> = <x, gradient of y>, copies counting as said.
void expect_transpose(const SequenceMove& move, double copies_from, double copies_to) {
  RC_LOG() << to_string(move.from) << " -> " << to_string(move.to) << "\n";
  const Shards x = integers(move.from, 3), y = integers(move.to, 5);
  const Shards forward = run_scaled(plan_redistribution(move.from, move.to), 1, x);
  const Shards backward = run_scaled(plan_redistribution(move.to, move.from), move.grad_scale, y);
  const double expected = product(forward, y, copies_to), got = product(x, backward, copies_from);
  // The scaled gradient is rounded to f32 twice (factor, product); sums of at most 2^16 doubles add far less.
  double magnitude = 0;
  for (const auto& [rank, shard] : x) {
    for (std::size_t i = 0; i < shard.size(); ++i) magnitude += std::abs(shard[i] * backward.at(rank)[i]);
  }
  RC_LOG() << expected << " against " << got << "\n";
  RC_ASSERT(std::abs(expected - got) <= 0x1.001p-23 * magnitude / copies_from);
}

RC_GTEST_PROP(SequenceProperty, DefaultScalesGiveTheTransposeWithEveryCopyCounted, ()) {
  const AnySequence sequence = any_sequence(DType::f32);
  const SequenceMove in =
      split_ring_then_ulysses(sequence.whole, sequence.axes, sequence.dim, any_ring_split(sequence));
  expect_transpose(in, 1, 1);
  expect_transpose(gather_ulysses_then_ring(in.to, sequence.axes), 1, 1);
}

RC_GTEST_PROP(SequenceProperty, WithoutAScaleItIsTheTransposeWithEachElementCountedOnce, ()) {
  const AnySequence sequence = any_sequence(DType::f32);
  const SequenceMove in = split_ring_then_ulysses(sequence.whole, sequence.axes, sequence.dim,
                                                  any_ring_split(sequence), GradScale::none);
  RC_ASSERT(in.grad_scale == 1);
  const Mesh& mesh = sequence.whole.mesh;
  double split_into = 1;
  if (!sequence.axes.ring.empty()) split_into *= mesh.axis_size(mesh.axis_index("ring"));
  if (!sequence.axes.ulysses.empty()) split_into *= mesh.axis_size(mesh.axis_index("ulysses"));
  const double copies = mesh.size(), copies_of_shards = copies / split_into;
  expect_transpose(in, copies, copies_of_shards);
  expect_transpose(gather_ulysses_then_ring(in.to, sequence.axes, GradScale::none), copies_of_shards, copies);
}

// Any matrix [rank][sequence]: what was split by it comes back, and the gradient is the transpose.
RC_GTEST_PROP(SequenceProperty, PackedSequencesOfAnySizesComeBack, ()) {
  const int n = *any_int(1, 5), sequences = *any_int(0, 5), num_dims = *any_int(1, 3);
  std::vector<std::vector<std::int64_t>> sizes(idx(n));
  std::vector<std::int64_t> held;
  for (std::vector<std::int64_t>& of_rank : sizes) {
    for (int s = 0; s < sequences; ++s) of_rank.push_back(*any_int(0, 3) == 0 ? 0 : *any_int(0, 7));
    held.push_back(std::accumulate(of_rank.begin(), of_rank.end(), std::int64_t{0}));
  }
  const int dim = *any_int(0, num_dims - 1);
  Shape shape;
  for (int i = 0; i < num_dims; ++i) shape.push_back(*any_int(0, 4));
  const Rank self = *any_int(0, n - 1);
  shape[idx(dim)] = held[idx(self)];
  const Layout shards = layout_from_local(Mesh({{"cp", n}}), self, "cp", dim, shape, DType::f32, sizes);
  for (const Rank rank : shards.mesh.ranks())
    RC_ASSERT(local_shape(shards, rank)[idx(dim)] == held[idx(rank)]);
  const SequenceMove out = gather_forward_split_backward(shards, "cp");
  const SequenceMove in = split_forward_gather_backward(out.to, "cp", dim, packed_sizes(sizes));
  RC_ASSERT(in.to == shards);
  const Shards tensor =
      make_shards(out.to, [](std::int64_t element) { return small_integer(1, element, 0, 100); });
  const Shards split = run_scaled(plan_redistribution(in.from, in.to), 1, tensor);
  RC_ASSERT(run_scaled(plan_redistribution(out.from, out.to), 1, split) == tensor);
  expect_transpose(in, 1, 1);
  expect_transpose(out, 1, 1);
}

RC_GTEST_PROP(SequenceProperty, ScalesMultiplyTheUnscaledGradient, ()) {
  const AnySequence sequence = any_sequence(DType::f32);
  const Split ring_split = any_ring_split(sequence);
  const Mesh& mesh = sequence.whole.mesh;
  double n = 1;
  for (const std::string& axis : {sequence.axes.ring, sequence.axes.ulysses}) {
    if (!axis.empty()) n *= mesh.axis_size(mesh.axis_index(axis));
  }
  for (const auto& [scale, factor] : {std::pair{GradScale::up, n}, std::pair{GradScale::down, 1 / n}}) {
    const SequenceMove in =
        split_ring_then_ulysses(sequence.whole, sequence.axes, sequence.dim, ring_split, scale);
    const SequenceMove out = gather_ulysses_then_ring(in.to, sequence.axes, scale);
    // A product of two factors 1/n, each rounded, against one.
    RC_ASSERT(std::abs(in.grad_scale - factor) <= 0x1p-51 * factor);
    RC_ASSERT(std::abs(out.grad_scale - factor) <= 0x1p-51 * factor);
  }
}

// Random all-to-alls there and back, and on to a gather: every element comes home.
RC_GTEST_PROP(SequenceProperty, AnAllToAllComesBack, ()) {
  const int num_dims = *any_int(2, 5), n = *any_int(1, 5);
  Shape shape;
  for (int i = 0; i < num_dims; ++i) shape.push_back(*any_int(0, 7));
  const int gather = *any_int(0, num_dims - 1);
  const int scatter = (gather + *any_int(1, num_dims - 1)) % num_dims;
  const Layout whole = make_layout(Mesh({{"cp", n}}), {Replicate{}}, shape, DType::f32);
  const SequenceMove in = split_forward_gather_backward(whole, "cp", gather);
  const SequenceMove there = all_to_all(in.to, "cp", scatter, gather - num_dims);
  const SequenceMove back = all_to_all(there.to, "cp", gather, scatter);
  RC_ASSERT(back.to == in.to);
  RC_LOG() << to_string(there.from) << " -> " << to_string(there.to) << "\n";
  sim::run_redistribution(plan_redistribution(there.from, there.to));
  const Shards x = integers(in.to, 3);
  const Shards moved = run_scaled(plan_redistribution(there.from, there.to), 1, x);
  RC_ASSERT(run_scaled(plan_redistribution(there.to, there.from), there.grad_scale, moved) == x);
  expect_transpose(there, 1, 1);
}

}  // namespace
}  // namespace cp::testing
