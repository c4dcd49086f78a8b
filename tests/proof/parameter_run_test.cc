// One parameter by itself, proved on the fabric.
#include "sim/proof/run/parameter_run.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

HsdpOptions options_of(std::vector<std::string> shard, std::vector<std::string> replicate) {
  HsdpOptions options;
  options.shard = std::move(shard), options.replicate = std::move(replicate);
  return options;
}

std::vector<std::string> names_of(const ParameterRun& run) {
  std::vector<std::string> names;
  for (const ParameterMove& move : run.moves) names.push_back(move.name);
  return names;
}

// Split by tensor parallelism along columns, sharded along rows, with two replicas; the backward pass leaves
// whole gradients that are parts of a sum over tp.
TEST(ParameterRun, NormalizesGradientsOfAnotherLayout) {
  const Mesh mesh = Mesh::parse("dp_replicate=2,dp_shard=2,tp=2");
  ParameterRequest request(HsdpParam(parse_layout("R,R,S(1)", mesh, {7, 4}, DType::f32),
                                     options_of({"dp_shard"}, {"dp_replicate"})));
  const ParameterRun as_it_is = run_parameter(request);
  EXPECT_TRUE(as_it_is.holds()) << as_it_is.finding;
  EXPECT_THAT(names_of(as_it_is), ElementsAre("unshard", "accumulate", "scatter", "all_reduce"));
  request.produced = parse_layout("P(avg),P(avg),P(sum)", mesh, {7, 4}, DType::f32);
  const ParameterRun normalized = run_parameter(request);
  EXPECT_TRUE(normalized.holds()) << normalized.finding;
  EXPECT_THAT(names_of(normalized),
              ElementsAre("unshard", "normalize", "accumulate", "scatter", "all_reduce"));
  // Half of 28 elements, to the other tp rank.
  EXPECT_EQ(normalized.moves[1].sent, 4 * 28 / 2);
  request.produced = parse_layout("R,P(avg),P(sum)", mesh, {7, 4}, DType::f32);
  EXPECT_THAT(message_of([&] { run_parameter(request); }),
              HasSubstr("ranks along dp_replicate have different data"));
}

TEST(ParameterRun, RefusesWhatIsNotExact) {
  HsdpOptions options = options_of({"s"}, {});
  options.param_dtype = DType::bf16;
  ParameterRequest request(HsdpParam(replicated_layout(Mesh::parse("s=12"), {5}, DType::f32), options));
  EXPECT_THAT(message_of([&] { run_parameter(request); }), HasSubstr("12 contributions in 2 micro-batches"));
  request.micro_batches = 1;
  EXPECT_TRUE(run_parameter(request).holds());
  request.param = HsdpParam(replicated_layout(Mesh::parse("s=257"), {5}, DType::f32), options_of({"s"}, {}));
  EXPECT_THAT(message_of([&] { run_parameter(request); }), HasSubstr("has 257 ranks"));
}

// Whatever shards it, in which dtypes, below the threshold or not.
RC_GTEST_PROP(ParameterRun, IsExact, ()) {
  const Mesh mesh({{"r", pick("replicas", rc::gen::inRange(1, 4))},
                   {"s", pick("shards", rc::gen::inRange(1, 4))},
                   {"t", pick("tp", rc::gen::inRange(1, 3))}});
  HsdpOptions options = options_of({"s"}, {"r"});
  options.shard_dim = pick("dim", rc::gen::inRange(0, 2));
  options.min_numel = pick("threshold", rc::gen::element<std::int64_t>(0, 0, 100));
  options.reduce = pick("reduce", rc::gen::element(ReduceOp::avg, ReduceOp::sum));
  options.param_dtype = pick("param", rc::gen::element(DType::f32, DType::bf16));
  options.reduce_dtype = pick("reduce_dtype", rc::gen::element(DType::f32, DType::bf16));
  const bool of_tp = pick("split by tp", rc::gen::arbitrary<bool>());
  const Shape shape{pick("rows", rc::gen::inRange<std::int64_t>(1, 7)), 4};
  ParameterRequest request(
      HsdpParam(parse_layout(of_tp ? "R,R,S(0)" : "R,R,R", mesh, shape, DType::f32), options));
  if (pick("another layout", rc::gen::arbitrary<bool>())) {
    const Placement of_tp_ranks[] = {Partial{ReduceOp::sum}, Replicate{}, Shard{1, Chunked{}}};
    const Layout& gradient = request.param.gradient();
    Layout produced = make_layout(
        mesh,
        {gradient.placements[0], gradient.placements[1], of_tp_ranks[pick("of tp", rc::gen::inRange(0, 3))]},
        shape, gradient.dtype);
    request.produced = produced;
  }
  request.micro_batches = pick("micro-batches", rc::gen::inRange(1, 4));
  request.seed = pick("seed", rc::gen::arbitrary<std::uint32_t>());
  const ParameterRun run = run_parameter(request);
  RC_LOG() << run.finding;
  RC_ASSERT(run.holds());
}

}  // namespace
}  // namespace cp::sim
