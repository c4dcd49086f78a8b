// Plans on the NCCL device, compared with the simulated fabric: bits of the outputs, and traces.
#include "runtime/nccl/nccl_device.h"

#include <algorithm>
#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_calls.h"
#include "runtime/nccl/nccl_communicators.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/canonical.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/support/fabric_run.h"
#include "tests/support/hand_plans.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::BufferValues;
using testing::GpuJob;
using testing::PlanCase;

std::vector<std::string> nothing(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks));
}

// With the fabric, and with the calls as they are recorded without a device.
std::string compare(const PlanCase& plan_case, const testing::FabricRun& fabric, NcclDevice& device) {
  RankTrace trace;
  if (const std::string wrong = testing::compare_with_fabric(plan_case, fabric, device, &trace);
      !wrong.empty())
    return wrong;
  const Plan& plan = plan_case.plans[static_cast<std::size_t>(device.rank())];
  std::vector<OpRecord> recorded = observed_records(runtime::nccl_calls(plan), plan);
  std::ranges::stable_sort(recorded, {}, &OpRecord::stream);
  return recorded == trace.observed ? ""
                                    : plan_case.name + ": other records than those of the recorded calls";
}

using Change = std::function<void(NcclOptions&)>;

std::vector<std::string> run_cases(
    const std::vector<PlanCase>& cases, bool split, const Change& change = [](NcclOptions&) {}) {
  const int ranks = static_cast<int>(cases.front().plans.size());
  const std::vector<testing::FabricRun> fabric_runs = testing::run_on_fabric(cases);
  const GpuJob job(ranks);
  return testing::run_gpu_ranks(ranks, [&](Rank rank) {
    NcclOptions options = split ? job.splitting_options(rank) : job.options(rank);
    change(options);
    NcclDevice device(options);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (const std::string wrong = compare(cases[i], fabric_runs[i], device); !wrong.empty()) return wrong;
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
  const bool has_policies =
      !runtime::refuse_nccl_option("", runtime::kNcclCtaPolicySince, runtime::nccl_versions());
  EXPECT_EQ(run_cases(testing::hand_plans(2), true,
                      [has_policies](NcclOptions& options) {
                        options.communicators = {.min_ctas = 1,
                                                 .max_ctas = 4,
                                                 .cta_policy = has_policies ? 1 : 0,
                                                 .register_buffers = true};
                      }),
            nothing(2));
}

Digest digest_of(std::string_view text) { return Hasher().add(text).digest(); }

// Groups of every shape, some of which ranks share with each other, used on streams of their own and in
// rank-dependent order of declaration.
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

// More events than the ring of those that are used again, waited for late: products that take their time on
// one stream, each added to those before it, and a copy on the other one, which is too early if it lacks any
// of them.
TEST(NcclDevice, OldEventsStillOrderStreams) {
  CP_REQUIRE_GPU();
#ifdef CP_GPU_EMULATED
  static constexpr int kProducts = 1;
#else
  static constexpr int kProducts = 2'000;  // of some 20 us each
#endif
  static constexpr std::int64_t kSize = 500;
  const GpuJob job(1);
  const auto run = [&](Rank rank) -> std::string {
    PlanBuilder b(rank, host_target());
    const auto square = [&](BufferId buffer) { return dense_view(buffer, 0, {kSize, kSize}); };
    const View x = square(b.input("x", DType::f32, kSize * kSize));
    const View y = square(b.inout("y", DType::f32, kSize * kSize));
    const View z = square(b.output("z", DType::f32, kSize * kSize));
    const StreamId first = b.stream("first"), second = b.stream("second");
    b.add(first, MatMul{x, x, y, true});
    b.add(second, Copy{y, z});
    const Plan plan = std::move(b).build({});
    NcclDevice device(job.options(rank));
    device.prepare(plan, {});
    std::vector<float> values(kSize * kSize, 0);
    device.upload(y.buffer, std::as_bytes(std::span(values)));
    std::ranges::fill(values, 1.0F);
    device.upload(x.buffer, std::as_bytes(std::span(values)));
    for (int i = 0; i < kProducts; ++i) device.launch(steps_of(plan)[0], 0);
    const EventId multiplied = device.record(first);
    for (int i = 0; i < 5000; ++i) device.record(second);
    device.wait(second, multiplied);
    device.launch(steps_of(plan)[1], 0);
    device.synchronize();
    device.download(z.buffer, std::as_writable_bytes(std::span(values)));
    // A whole number below 2^24, as are all on the way to it: exact in f32.
    const auto wrong = std::ranges::count_if(
        values, [](float value) { return value != static_cast<float>(kProducts * kSize); });
    return wrong == 0 ? "" : str(wrong, " elements were copied too early");
  };
  EXPECT_EQ(testing::run_gpu_ranks(1, run), nothing(1));
}

}  // namespace
}  // namespace cp
