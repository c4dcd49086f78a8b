// Plans on the NCCL device, compared with the simulated fabric: bits of the outputs, and traces.
#include "runtime/nccl/nccl_device.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/nccl/nccl_calls.h"
#include "runtime/nccl/nccl_communicators.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/canonical.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/support/hand_plans.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::BufferValues;
using testing::GpuJob;
using ::testing::HasSubstr;
using testing::PlanCase;

std::vector<std::string> nothing(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks));
}

struct FabricRun {
  std::vector<BufferValues> outputs;  // by rank
  std::vector<RankTrace> traces;
};

FabricRun run_on_fabric(const PlanCase& plan_case) {
  sim::Fabric fabric(static_cast<int>(plan_case.plans.size()));
  FabricRun run{std::vector<BufferValues>(plan_case.plans.size()), {}};
  fabric.run([&](Rank rank, Device& device) {
    run.outputs[static_cast<std::size_t>(rank)] =
        run_plan_case(plan_case, rank, device, &fabric.traces()[static_cast<std::size_t>(rank)]);
  });
  run.traces = fabric.traces();
  return run;
}

// Runs the case on the device; what differs from the definition or from the fabric, in words. Bits are compared where the case is
// exact; attention is not.
std::string compare_with_fabric(const PlanCase& plan_case, const FabricRun& fabric, NcclDevice& device) {
  const Rank rank = device.rank();
  RankTrace trace;
  const BufferValues outputs = run_plan_case(plan_case, rank, device, &trace);
  trace.observed = device.take_observed();
  if (const std::string wrong = compare_outputs(plan_case, rank, outputs); !wrong.empty()) return wrong;
  if (plan_case.tolerance == 0 && outputs != fabric.outputs[static_cast<std::size_t>(rank)])
    return plan_case.name + ": other bits than the fabric's";
  const auto difference = first_difference({trace}, {fabric.traces[static_cast<std::size_t>(rank)]});
  if (difference) return plan_case.name + ": " + *difference;
  const Plan& plan = plan_case.plans[static_cast<std::size_t>(rank)];
  std::vector<OpRecord> recorded = observed_records(runtime::nccl_calls(plan), plan);
  std::ranges::stable_sort(recorded, {}, &OpRecord::stream);
  return recorded == trace.observed ? ""
                                    : plan_case.name + ": other records than those of the recorded calls";
}

using Change = std::function<void(NcclOptions&)>;

std::vector<std::string> run_cases(
    const std::vector<PlanCase>& cases, bool split, const Change& change = [](NcclOptions&) {}) {
  const int ranks = static_cast<int>(cases.front().plans.size());
  std::vector<FabricRun> fabric_runs;
  for (const PlanCase& plan_case : cases) fabric_runs.push_back(run_on_fabric(plan_case));
  const GpuJob job(ranks);
  return testing::run_gpu_ranks(ranks, [&](Rank rank) {
    NcclOptions options = split ? job.splitting_options(rank) : job.options(rank);
    change(options);
    NcclDevice device(options);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (const std::string wrong = compare_with_fabric(cases[i], fabric_runs[i], device); !wrong.empty())
        return wrong;
    }
    return std::string();
  });
}

TEST(NcclDevice, RunsTheHandPlansLikeTheFabric) {
  CP_REQUIRE_GPU();
  for (const int ranks : {1, 2, 4}) EXPECT_EQ(run_cases(testing::hand_plans(ranks), false), nothing(ranks));
}

TEST(NcclDevice, GroupsSplitFromTheWorldAreNoOtherGroups) {
  CP_REQUIRE_GPU();
  for (const int ranks : {1, 4}) EXPECT_EQ(run_cases(testing::hand_plans(ranks), true), nothing(ranks));
}

TEST(NcclDevice, OptionsOfTheCommunicatorsChangeNoResult) {
  CP_REQUIRE_GPU();
  EXPECT_EQ(run_cases(testing::hand_plans(2), true,
                      [](NcclOptions& options) {
                        options.communicators = {
                            .min_ctas = 1, .max_ctas = 4, .cta_policy = 1, .register_buffers = true};
                      }),
            nothing(2));
}

Digest digest_of(std::string_view text) { return Hasher().add(text).digest(); }

// Groups of every shape, some of which ranks share with each other, used on streams of their own and in rank-dependent order of
// declaration.
PlanCase many_groups() {
  constexpr int kRanks = 4;
  const std::map<std::string, std::vector<Rank>> groups = {{"a", {0, 1}},           {"b", {1, 2}},
                                                           {"c", {2, 3}},           {"d", {3, 0}},
                                                           {"mixed", {3, 1, 0, 2}}, {"all", {0, 1, 2, 3}}};
  PlanCase result{"many_groups", {}, {}, {}, 0};
  for (Rank self = 0; self < kRanks; ++self) {
    PlanBuilder b(self, host_target());
    std::vector<std::string> names;
    for (const auto& [name, ranks] : groups) {
      if (std::ranges::find(ranks, self) != ranks.end()) names.push_back(name);
    }
    std::vector<std::string> declared = names;
    if (self % 2 == 1) std::ranges::reverse(declared);
    for (const std::string& name : declared) b.group(name, groups.at(name));
    const BufferId x = b.input("x", DType::i32, 1);
    BufferValues expected;
    for (int round = 0; round < 3; ++round) {
      for (const std::string& name : names) {
        const std::vector<Rank>& ranks = groups.at(name);
        const auto size = static_cast<std::int64_t>(ranks.size());
        const StreamId stream = b.stream("stream of " + name);
        const View sum = flat_view(b.output(str(name, round, "_sum"), DType::i32, 1), 0, 1);
        const View all = flat_view(b.output(str(name, round, "_all"), DType::i32, size), 0, size);
        b.add(stream, AllReduce{b.group(name, ranks), ReduceOp::sum, flat_view(x, 0, 1), sum});
        b.add(stream, AllGather{b.group(name, ranks), flat_view(x, 0, 1), all});
        double total = 0;
        for (const Rank rank : ranks) {
          total += 1 << rank;
          expected[str(name, round, "_all")].push_back(1 << rank);
        }
        expected[str(name, round, "_sum")] = {total};
      }
    }
    result.plans.push_back(std::move(b).build(digest_of(result.name)));
    result.inputs.push_back({{"x", {static_cast<double>(1 << self)}}});
    result.expected.push_back(expected);
  }
  return result;
}

TEST(NcclDevice, ManyGroupsAreMadeInOneOrderAndKeepTheirs) {
  CP_REQUIRE_GPU();
  for (const bool split : {false, true})
    EXPECT_EQ(run_cases({many_groups(), many_groups()}, split), nothing(4));
}

TEST(NcclCommunicators, RoundsOfASplitHaveNoRankTwice) {
  std::map<std::string, Group> groups;
  for (const Group& group : {Group{"a", {0, 1}}, Group{"b", {1, 2}}, Group{"c", {2, 3}}, Group{"d", {3, 0}}})
    groups[canonical_name(group)] = group;
  std::vector<std::string> rounds;
  for (const auto& round : runtime::split_rounds(groups)) {
    std::vector<std::string> names;
    for (const Group* group : round) names.push_back(group->name);
    rounds.push_back(join(names, "+"));
  }
  EXPECT_EQ(rounds, (std::vector<std::string>{"a+c", "b+d"}));
}

// More events than the ring of those that are used again, waited for late: a product that takes its time on one stream, and a copy of it
// on the other one.
TEST(NcclDevice, OldEventsStillOrderStreams) {
  CP_REQUIRE_GPU();
  static constexpr std::int64_t kSize = 500;
  const GpuJob job(1);
  const auto run = [&](Rank rank) -> std::string {
    PlanBuilder b(rank, host_target());
    const auto square = [&](BufferId buffer) { return dense_view(buffer, 0, {kSize, kSize}); };
    const View x = square(b.input("x", DType::f32, kSize * kSize));
    const View y = square(b.temporary("y", DType::f32, kSize * kSize));
    const View z = square(b.output("z", DType::f32, kSize * kSize));
    const StreamId first = b.stream("first"), second = b.stream("second");
    b.add(first, MatMul{x, x, y, false});
    b.add(second, Copy{y, z});
    const Plan plan = std::move(b).build({});
    NcclDevice device(job.options(rank));
    device.prepare(plan, {});
    std::vector<float> values(kSize * kSize, 1);
    device.upload(x.buffer, std::as_bytes(std::span(values)));
    device.launch(std::get<Step>(plan.segments[0]), 0);
    const EventId multiplied = device.record(first);
    for (int i = 0; i < 5000; ++i) device.record(second);
    device.wait(second, multiplied);
    device.launch(std::get<Step>(plan.segments[1]), 0);
    device.synchronize();
    device.download(z.buffer, std::as_writable_bytes(std::span(values)));
    const auto wrong =
        std::ranges::count_if(values, [](float value) { return value != static_cast<float>(kSize); });
    return wrong == 0 ? "" : str(wrong, " elements were copied too early");
  };
  EXPECT_EQ(testing::run_gpu_ranks(1, run), nothing(1));
}

// ---- what is told about a run

TEST(NcclDevice, TellsWhenStepsRanAndWhichCollectivesBegan) {
  CP_REQUIRE_GPU();
  const PlanCase plan_case = testing::prefetched_blocks(2, 3);
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(
                2,
                [&](Rank rank) -> std::string {
                  std::map<std::string, std::vector<std::int64_t>> began;  // numbers, by group
                  std::mutex mutex;
                  NcclOptions options = job.options(rank);
                  options.on_collective = [&](const runtime::CollectiveBegin& begin) {
                    const std::lock_guard lock(mutex);
                    began[begin.group.name].push_back(begin.number);
                  };
                  NcclDevice device(options);
                  for (int run = 0; run < 2; ++run) {
                    const Plan& plan = plan_case.plans[static_cast<std::size_t>(rank)];
                    RankTrace trace;
                    run_plan_case(plan_case, rank, device, &trace);
                    const runtime::DeviceTimes times = device.take_times();
                    if (times.steps.size() != trace.issued.size())
                      return str(times.steps.size(), " times of ", trace.issued.size(), " steps");
                    if (times.collectives.size() != device.take_observed().size())
                      return "times of other collectives";
                    std::map<StreamId, std::int64_t> ends;
                    for (const TimedOp& op : times.steps) {
                      // Clocks read a pair in the order in which it was recorded; two anchors may be some microseconds off.
                      if (op.begin_ns < 0 || op.end_ns < op.begin_ns || op.begin_ns < ends[op.stream] - 1'000)
                        return str(op.operation, " from ", op.begin_ns, " to ", op.end_ns);
                      ends[op.stream] = op.end_ns;
                    }
                    std::map<std::string, std::int64_t> expected;
                    for (const OpRecord& record : observed_records(runtime::nccl_calls(plan), plan))
                      ++expected[record.group.name];
                    const std::lock_guard lock(mutex);
                    for (const auto& [group, count] : expected) {
                      std::vector<std::int64_t> numbers(static_cast<std::size_t>((run + 1) * count));
                      std::iota(numbers.begin(), numbers.end(), 0);
                      if (began[group] != numbers) return str(group, ": began ", join(began[group]));
                    }
                  }
                  return "";
                }),
            nothing(2));
}

// ---- refusals

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "nothing was refused";
}

Plan all_reduce_plan(Rank self, std::vector<Rank> ranks) {
  PlanBuilder b(self, host_target());
  const BufferId x = b.inout("x", DType::f32, 4);
  b.add(b.stream("main"),
        AllReduce{b.group("all", std::move(ranks)), ReduceOp::sum, flat_view(x, 0, 4), flat_view(x, 0, 4)});
  return std::move(b).build({});
}

TEST(NcclDevice, RefusesPlansThatAreNotItsOwn) {
  CP_REQUIRE_GPU();
  const GpuJob job(1);
  EXPECT_EQ(
      testing::run_gpu_ranks(1,
                             [&](Rank rank) -> std::string {
                               NcclDevice device(job.options(rank));
                               const Plan other = all_reduce_plan(1, {1});
                               std::string said = refusal([&] { device.prepare(other, {}); });
                               if (said != "the plan of rank 1 on the device of rank 0") return said;
                               PlanBuilder b(rank, shape_target());
                               const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
                               b.add(b.stream("s"), RowKernel{RowOperation::rotary, {}, {}, {x}}, "turn");
                               const Plan lacking = std::move(b).build({});
                               said = refusal([&] { device.prepare(lacking, {}); });
                               if (said.find("no operation rotary (step 0 \"turn\")") == std::string::npos)
                                 return said;
                               const Plan plan = all_reduce_plan(0, {0});
                               device.prepare(plan, {});  // as good as before
                               device.synchronize();
                               return "";
                             }),
      nothing(1));
}

TEST(NcclDevice, AGpuThatIsNotThereIsRefusedWithTheNumberThatAre) {
  CP_REQUIRE_GPU();
  EXPECT_EQ(testing::run_gpu_ranks(1,
                                   [&](Rank) -> std::string {
                                     const std::string said = refusal([] {
                                       NcclOptions options;
                                       options.cuda_device = 99;
                                       const NcclDevice device(options);
                                     });
                                     return said == str("there is no GPU 99; this process sees ",
                                                        runtime::gpu_count(), ", numbered from 0")
                                                ? ""
                                                : said;
                                   }),
            nothing(1));
}

}  // namespace
}  // namespace cp
