// What `cprun profile` is made of, without a device.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/cprun/nccl_options.h"
#include "cli/cprun/profile/channel_choice.h"
#include "cli/cprun/profile/device_profile.h"
#include "cli/cprun/profile/profile_points.h"
#include "cli/cprun/profile/profile_rows.h"
#include "cli/cprun/profile/software_profile.h"
#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/sourced_text.h"
#include "sim/cost/presets/csv.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/present/plan/answer_json.h"
#include "sim/present/plan/plan_inputs.h"
#include "tests/cli/cpsim_process.h"
#include "tests/support/example_answer.h"

namespace cp::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TimedOp step(const char* label, std::int64_t begin_ns, std::int64_t end_ns) {
  return {0, "operation", label, begin_ns, end_ns};
}

// ---- statistics ----

TEST(ProfileSpread, IsMedianAndQuartiles) {
  const Spread spread = spread_of({50, 10, 20, 40, 30});
  EXPECT_EQ(spread.samples, 5);
  EXPECT_DOUBLE_EQ(spread.median_us, 30);
  EXPECT_DOUBLE_EQ(spread.low_us, 20);
  EXPECT_DOUBLE_EQ(spread.high_us, 40);
  EXPECT_DOUBLE_EQ(spread.relative(), 20.0 / 30);
  EXPECT_DOUBLE_EQ(spread_of({1, 2}).median_us, 1.5);
  EXPECT_DOUBLE_EQ(spread_of({7}).high_us, 7);
  EXPECT_THROW(spread_of({}), InvalidInput);
}

TEST(ProfileSpread, OneOutlierInFourMovesNeitherMedianNorSpreadFar) {
  const Spread spread = spread_of({10, 10, 10, 1000});
  EXPECT_DOUBLE_EQ(spread.median_us, 10);
  EXPECT_DOUBLE_EQ(spread.low_us, 10);
}

TEST(ProfileSpread, ComesBackFromItsText) {
  const Spread spread{3, 1.0 / 3, 0.1, 0.7};
  const Spread back = spread_from_text(to_text(spread));
  EXPECT_EQ(back.samples, 3);
  EXPECT_EQ(back.median_us, spread.median_us);
  EXPECT_EQ(back.low_us, spread.low_us);
  EXPECT_EQ(back.high_us, spread.high_us);
}

TEST(ProfileSpread, TheSlowestRankCountsAmongThoseWithAPart) {
  EXPECT_EQ(slowest({{5, 10, 9, 11}, {}, {5, 12, 11, 13}}).median_us, 12);
  EXPECT_EQ(slowest({{}, {}}).samples, 0);
}

TEST(ProfileTimes, AreOfTheLabelWithoutTheFirst) {
  const std::vector<TimedOp> steps = {step("kernel", 0, 9000), step("", 9000, 99000),
                                      step("kernel", 99000, 101000), step("kernel", 101000, 104000)};
  EXPECT_THAT(times_of(steps, "kernel", 1), ElementsAre(2, 3));
  EXPECT_THAT(times_of(steps, "kernel", 5), IsEmpty());
}

// Kernels run from 0 to 60, collectives from 15 to 90: the first kernels and the last collective had company
// for a part only.
TEST(ProfileTimes, BesideMeansAllAlong) {
  std::vector<TimedOp> steps;
  for (std::int64_t at = 0; at < 60; at += 10) steps.push_back(step("kernel", at * 1000, (at + 10) * 1000));
  for (std::int64_t at = 15; at < 90; at += 25)
    steps.push_back(step("collective", at * 1000, (at + 25) * 1000));
  const Overlapping both = overlapping_times(steps, "kernel", "collective", 0);
  EXPECT_THAT(both.a_us, ElementsAre(10, 10, 10, 10));
  EXPECT_THAT(both.b_us, ElementsAre(25));
  EXPECT_THAT(overlapping_times(steps, "kernel", "nothing", 0).a_us, IsEmpty());
}

// Two steps an iteration, of 30 us on the host: 100 iterations take it 6 ms.
TEST(ProfileTimes, TheHeadIsAsLongAsTheHostNeeds) {
  std::vector<TimedOp> tried = {step("head", 0, 25'000)};
  for (std::int64_t i = 0; i < 3; ++i) {
    tried.push_back(step("", 25'000 + 2'000 * i, 26'000 + 2'000 * i));
    tried.push_back(step("kernel", 26'000 + 2'000 * i, 27'000 + 2'000 * i));
  }
  EXPECT_EQ(head_repeats(tried, 3, 100), 240);
  tried.front() = step("head", 0, 8'000'000);
  EXPECT_EQ(head_repeats(tried, 3, 100), 1);
  tried.front() = step("head", 0, 0);
  EXPECT_EQ(head_repeats(tried, 3, 100), 6000) << "at least a microsecond";
  EXPECT_EQ(head_repeats({}, 3, 100), 1) << "of a rank without a part";
}

// Of 32 steps: 320 us more than without them, and never less than nothing.
TEST(ProfileTimes, OfIssuingAreWhatTheStepsAdd) {
  const Spread each = issue_times({420, 400, 440}, {90, 110, 100}, 32);
  EXPECT_EQ(each.samples, 3);
  EXPECT_DOUBLE_EQ(each.median_us, 10);
  EXPECT_EQ(issue_times({80, 90, 70}, {100, 100, 100}, 32).median_us, 0);
  EXPECT_EQ(issue_times({80}, {100}, 32).relative(), 0);
}

// ---- the grid and its plans ----

TEST(ProfileGrid, HasNamesThatDifferAndCollectivesOfSeveralRanksAlone) {
  for (const ProfileSize size : {ProfileSize::tiny, ProfileSize::quick, ProfileSize::whole}) {
    std::set<std::string> names;
    const ProfileGrid grid = profile_grid(size, {16, 2});
    for (const ProfilePoint& point : grid.points)
      EXPECT_TRUE(names.insert(name(point)).second) << name(point);
    EXPECT_THAT(names, ::testing::Contains(HasSubstr("8 pairs ")));
    for (const ProfilePoint& point : profile_grid(size, {1, 1}).points)
      EXPECT_FALSE(std::holds_alternative<CollectivePoint>(point) ||
                   std::holds_alternative<BesidePoint>(point));
    for (const ProfilePoint& point : profile_grid(size, {8, 1}).points)
      EXPECT_FALSE(std::holds_alternative<PairsPoint>(point));
  }
}

TEST(ProfilePlan, OfEachPointIsRightOnAllRanks) {
  for (const Target* target : {&host_target(), &gpu_target("sm90")}) {
    for (const ProfilePoint& point : profile_grid(ProfileSize::tiny, {4, 2}).points) {
      SCOPED_TRACE(name(point));
      ProfilePlanOptions options;
      options.iterations = 3, options.head_bytes = options.cache_bytes = 4096, options.kernels = 2;
      std::vector<Plan> plans;
      for (Rank rank = 0; rank < 4; ++rank)
        plans.push_back(profile_plan(point, rank, {4, 2}, *target, options));
      EXPECT_NO_THROW(check(plans));
    }
  }
}

TEST(ProfilePlan, BeginsWithItsHeadOverAndOver) {
  ProfilePlanOptions options;
  options.head_repeats = 7, options.iterations = 3;
  const Plan plan =
      profile_plan(MemoryPoint{MemoryPoint::Kernel::pack, 1 << 20}, 0, {}, gpu_target("sm90"), options);
  std::int64_t heads = 0, kernels = 0;
  for (const StepRef& ref : steps_of(plan)) (ref.step->label == kHeadLabel ? heads : kernels) += ref.count;
  EXPECT_EQ(heads, 7);
  EXPECT_EQ(kernels, 3);
}

// Kernels that ran beside those of another rank on the same GPU would seem twice as long.
TEST(ProfilePlan, OfAKernelIsEmptyButForOneRankOfASharedGpu) {
  const ProfileWorld world{2, 1, true};
  const ProfileGrid grid = profile_grid(ProfileSize::quick, world);
  for (const ProfilePoint& point : grid.points) {
    SCOPED_TRACE(name(point));
    EXPECT_FALSE(std::holds_alternative<BesidePoint>(point));
    const auto* collective = std::get_if<CollectivePoint>(&point);
    EXPECT_LE(collective == nullptr ? 0 : collective->bytes, 64 << 20);
    const auto steps = [&](Rank rank) {
      const Plan plan = profile_plan(point, rank, world, gpu_target("sm90"), {});
      return steps_of(plan).size();
    };
    EXPECT_GT(steps(0), 0U);
    const auto* issue = std::get_if<IssuePoint>(&point);
    EXPECT_EQ(steps(1) > 0,
              collective != nullptr || (issue != nullptr && issue->step != IssuePoint::Step::kernel));
  }
}

TEST(ProfilePlan, RotatesWhatWouldStayInTheCache) {
  const auto slots = [](std::int64_t bytes) {
    ProfilePlanOptions options;
    options.iterations = 100, options.cache_bytes = 1 << 20;
    const Plan plan =
        profile_plan(MemoryPoint{MemoryPoint::Kernel::copy, bytes}, 0, {}, host_target(), options);
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.name == "in") return buffer.bytes() * 2 / bytes;
    }
    return std::int64_t{0};
  };
  EXPECT_EQ(slots(1 << 16), 16);
  EXPECT_EQ(slots(1 << 22), 1);
  EXPECT_EQ(slots(1 << 8), 100) << "no more than iterations";
}

TEST(ProfilePoint, CountsWhatItsKernelDoes) {
  AttentionPoint point;
  point.seq_len = 8192, point.q_heads = point.kv_heads = 2, point.head_dim = 64;
  EXPECT_DOUBLE_EQ(flops(point), 4.0 * 8192 * 8192 * 2 * 64);
  point.mask = AttentionPoint::Mask::causal, point.backward = true;
  EXPECT_DOUBLE_EQ(flops(point), 10.0 * (8192.0 * 8193 / 2) * 2 * 64);
  point.mask = AttentionPoint::Mask::window;  // of 4096: the first rows see fewer
  EXPECT_DOUBLE_EQ(flops(point), 10.0 * (4096.0 * 4097 / 2 + 4096.0 * 4096) * 2 * 64);
  EXPECT_DOUBLE_EQ(flops(ProductPoint{3, 5, 7}), 2.0 * 3 * 5 * 7);
  EXPECT_EQ(moved_bytes({MemoryPoint::Kernel::copy, 4096}), 4096);
  EXPECT_EQ(moved_bytes({MemoryPoint::Kernel::cast, 600}), 600);
  EXPECT_EQ(moved_bytes({MemoryPoint::Kernel::pack, 10000}), 2 * 1024 * 4);
}

// The rule by which a profile's rates become a cluster's, and its passes a software's, is the engine's.
TEST(ProfilePoint, MovesTheBytesThatTheEngineCounts) {
  using Kernel = MemoryPoint::Kernel;
  for (const Kernel kernel : {Kernel::copy, Kernel::pack, Kernel::cast, Kernel::merge}) {
    for (const std::int64_t bytes : {1, 10'001, 1 << 20}) {
      const MemoryPoint point{kernel, bytes};
      const Plan plan = profile_plan(point, 0, {}, gpu_target("sm90"), {});
      int found = 0;
      for (const StepRef& ref : steps_of(plan)) {
        if (ref.step->label != kKernelLabel) continue;
        ++found;
        EXPECT_EQ(sim::work_of(std::get<cp::Kernel>(ref.step->work), plan).bytes,
                  static_cast<double>(moved_bytes(point)))
            << name(point);
      }
      EXPECT_EQ(found, 1);
    }
  }
}

// ---- what is written ----

std::vector<ProfileRow> some_rows() {
  std::vector<ProfileRow> rows;
  double us = 100;
  for (const ProfilePoint& point : profile_grid(ProfileSize::tiny, {2, 1}).points) {
    const Spread time{9, us, us * 0.99, us * 1.01};
    rows.push_back({point, time});
    if (std::holds_alternative<BesidePoint>(point)) {
      rows.back().kernel_alone = {9, us / 2, us / 2, us / 2};
      rows.back().collective_alone = {9, us * 0.75, us * 0.75, us * 0.75},
      rows.back().collective_beside = time;
    }
    us += 1;
  }
  return rows;
}

ProfileMachine some_machine() {
  ProfileMachine machine;
  machine.gpu = "NVIDIA H100 80GB HBM3", machine.date = "2026-11-22";
  machine.libraries = {{"nccl", "2.28.9"}, {"driver", "580.1"}};
  machine.world.ranks = 2;
  machine.max_clock_mhz = 1980, machine.sustained_clock_mhz = 1400, machine.power_w = 698,
  machine.seconds = 30;
  return machine;
}

TEST(DeviceProfile, IsAClusterThatComesBack) {
  const sim::Cluster base = sim::find_cluster("dgx-h100");
  const DeviceProfile profile = device_profile(base, "mine", some_rows(), some_machine());
  const sim::Cluster read = sim::read_cluster(profile.text, "mine.txtpb");
  EXPECT_EQ(read, profile.calibration.cluster);
  EXPECT_EQ(read.name, "mine");
  EXPECT_EQ(read.gpu.name, "NVIDIA H100 80GB HBM3");
  EXPECT_DOUBLE_EQ(read.transfer.beside_kernels, 0.75);
  EXPECT_THAT(profile.text,
              AllOf(HasSubstr("nccl 2.28.9"), HasSubstr("SM clock 1400 MHz and 698 W after 30 s"),
                    HasSubstr("half of them within 2 % of one another")));
  // The first product took 111 us.
  const double flops = 2.0 * 32 * 32 * 32;
  for (const ProfileRow& row : some_rows()) {
    if (std::holds_alternative<ProductPoint>(row.point)) {
      EXPECT_NEAR(read.matmul_efficiency.at(flops), flops / row.time.median_us * 1e-6 / read.gpu.tflops_16,
                  1e-9);
    }
  }
  const auto all_gather =
      std::find_if(read.collectives.begin(), read.collectives.end(),
                   [](const auto& curve) { return curve.operation == "all_gather" && curve.gpus == 2; });
  ASSERT_NE(all_gather, read.collectives.end());
  EXPECT_EQ(all_gather->time_us.points().size(), 2U);
}

// Not published: it is the user's own.
TEST(DeviceProfile, IsCalledMeasuredByAPlan) {
  const DeviceProfile profile =
      device_profile(sim::find_cluster("dgx-h100"), "mine", some_rows(), some_machine());
  ASSERT_FALSE(profile.calibration.fits.empty());
  sim::PlanAnswer answer = testing::example_answer();
  answer.question.cluster = sim::read_cluster(profile.text, "mine.txtpb");
  for (const sim::CurveFit& fit : profile.calibration.fits) {
    const sim::Source* source = answer.question.cluster.source_of(fit.field);
    ASSERT_NE(source, nullptr) << fit.field;
    EXPECT_EQ(source->provenance.origin, sim::Origin::measured) << fit.field;
    EXPECT_THAT(source->provenance.source,
                ::testing::StartsWith("cprun profile, NVIDIA H100 80GB HBM3, 2026-11-22: "));
  }
  EXPECT_EQ(answer.question.cluster.source_of("transfer.beside_kernels")->provenance.origin,
            sim::Origin::measured);
  for (const auto& [title, text] : plan_inputs(answer.question)) {
    if (title == "rates") {
      EXPECT_THAT(text, AllOf(::testing::StartsWith("attention, products, memory, collectives"),
                              Not(HasSubstr("published"))));
    }
  }
  const auto software = measured_software("mine", some_rows(), some_machine());
  ASSERT_TRUE(software);
  answer.question.software = sim::read_software(software->text, "mine.software.txtpb");
  for (const std::string& field : software->measured)
    EXPECT_EQ(sim::find_source(answer.question.software.sources, field)->provenance.origin,
              sim::Origin::measured);
  for (const auto& [title, text] : plan_inputs(answer.question)) {
    if (title == "software") {
      EXPECT_THAT(text, HasSubstr(" numbers measured"));
    }
  }
  const auto as_json = nlohmann::json::parse(sim::to_json(answer));
  for (const auto& value : as_json["question"]["cluster"]["values"]) {
    if (value["field"] == "matmul_efficiency") {
      EXPECT_EQ(value["origin"], "measured");
    }
  }
}

TEST(DeviceProfile, WhatRanksOfOneGpuSendIsNoCurve) {
  ProfileMachine machine = some_machine();
  machine.world.shared_gpu = true;
  const sim::Cluster base = sim::find_cluster("dgx-h100");
  const DeviceProfile profile = device_profile(base, "mine", some_rows(), machine);
  EXPECT_EQ(profile.calibration.cluster.collectives, base.collectives);
  EXPECT_EQ(profile.calibration.cluster.transfer, base.transfer);
  EXPECT_THAT(profile.notes, ::testing::Contains(HasSubstr("ranks share a GPU")));
}

// Of a copy that stayed in the cache, say.
TEST(DeviceProfile, ATableThatTheClusterRefusesIsANote) {
  std::vector<ProfileRow> rows = some_rows();
  for (ProfileRow& row : rows) {
    if (std::holds_alternative<MemoryPoint>(row.point)) row.time = {9, 1e-6, 1e-6, 1e-6};
  }
  const sim::Cluster base = sim::find_cluster("dgx-h100");
  const DeviceProfile profile = device_profile(base, "mine", rows, some_machine());
  EXPECT_EQ(profile.calibration.cluster.memory_efficiency, base.memory_efficiency);
  EXPECT_THAT(profile.notes,
              ::testing::Contains(AllOf(HasSubstr("not in the cluster: "), HasSubstr("gpu.hbm_gbps"))));
}

TEST(DeviceProfile, OfAFewPointsHasThose) {
  const std::vector<ProfileRow> rows = {some_rows().front()};
  const DeviceProfile profile = device_profile(sim::find_cluster("dgx-h100"), "mine", rows, some_machine());
  EXPECT_EQ(profile.calibration.fits.size(), 1U);
  EXPECT_NO_THROW(sim::read_cluster(profile.text, "mine.txtpb"));
}

// In some_rows kernels keep half of their speed. The times below are of one copy, pack and merge.
TEST(SoftwareProfile, IsWhatCprunAssumesWithWhatWasMeasured) {
  std::vector<ProfileRow> rows;
  for (const ProfileRow& row : some_rows()) {
    if (!std::holds_alternative<MemoryPoint>(row.point)) rows.push_back(row);
  }
  using Kernel = MemoryPoint::Kernel;
  for (const auto& [kernel, us] : {std::pair{Kernel::copy, 2.0}, {Kernel::pack, 3.0}, {Kernel::merge, 5.0}}) {
    const MemoryPoint point{kernel, 1 << 20};
    rows.push_back({point, {9, us * static_cast<double>(moved_bytes(point)), 1, 9e9}});
  }
  const auto profile = measured_software("mine", rows, some_machine());
  ASSERT_TRUE(profile);
  EXPECT_THAT(profile->measured,
              ElementsAre("backward_progress", "collective_issue_us", "forward_progress", "kernel_issue_us",
                          "merge_passes", "pack_passes", "transfer_issue_us"));
  EXPECT_DOUBLE_EQ(profile->software.forward_progress, 0.5);
  EXPECT_DOUBLE_EQ(profile->software.backward_progress, 0.5);
  EXPECT_DOUBLE_EQ(profile->software.merge_passes, 2.5);
  EXPECT_DOUBLE_EQ(profile->software.pack_passes, 1.5);
  for (const auto& [point, row] : rows_of<IssuePoint>(rows)) {
    using Step = IssuePoint::Step;
    EXPECT_DOUBLE_EQ(point->step == Step::kernel       ? profile->software.kernel_issue_us
                     : point->step == Step::collective ? profile->software.collective_issue_us
                                                       : profile->software.transfer_issue_us,
                     row->time.median_us)
        << name(*point);
  }
  EXPECT_EQ(sim::read_software(profile->text, "mine.software.txtpb"), profile->software);
  EXPECT_THAT(
      profile->text,
      AllOf(HasSubstr("SM clock 1400 MHz"), HasSubstr("from 0.5 to 0.5"),
            HasSubstr("channels 1, they keep of their speed: attention forward 0.5, attention backward "
                      "0.5, products 0.5, collectives 0.75")));
}

// A kernel that ran faster beside a transfer than alone, by noise, keeps all of its speed; channels that were
// asked for do not count.
TEST(SoftwareProfile, CountsTheLibrarysOwnChannelsAndNoMoreThanAll) {
  std::vector<ProfileRow> rows = some_rows();
  for (ProfileRow& row : rows) {
    if (const auto* point = std::get_if<BesidePoint>(&row.point); point != nullptr && point->channels == 0)
      row.kernel_alone = {9, 2 * row.time.median_us, 1, 9e9};
  }
  const auto profile = measured_software("mine", rows, some_machine());
  ASSERT_TRUE(profile);
  EXPECT_EQ(profile->software.forward_progress, 1);
}

// A row of attention beside a collective: what one call of each takes.
ProfileRow beside(int channels, std::int64_t bytes, double attention_us, double collective_us) {
  ProfileRow row{BesidePoint{{"exchange", bytes}, AttentionPoint{}, channels},
                 {9, attention_us, attention_us, attention_us}};
  row.kernel_alone = {9, 90, 90, 90}, row.collective_alone = {9, 40, 40, 40};
  row.collective_beside = {9, collective_us, collective_us, collective_us};
  return row;
}

// Of 2 channels attention keeps most, and transfers take longest; the sums are 150, 140 and 160.
TEST(ChannelChoice, IsTheLeastTotalOfAttentionAndTransfers) {
  std::vector<ProfileRow> rows = {beside(0, 1 << 20, 100, 50), beside(8, 1 << 20, 95, 45),
                                  beside(2, 1 << 20, 90, 70)};
  ChannelChoice choice = choose_channels(rows);
  EXPECT_EQ(choice.channels, 8);
  EXPECT_EQ(choice.pairs, 1U);
  EXPECT_EQ(choice.total_us, (std::map<int, double>{{0, 150}, {2, 160}, {8, 140}}));
  // The second pair is measured with 2 channels and as the library chooses alone: 8 does not count any more.
  rows.push_back(beside(0, 1 << 24, 300, 200)), rows.push_back(beside(2, 1 << 24, 200, 210));
  choice = choose_channels(rows);
  EXPECT_EQ(choice.channels, 2);
  EXPECT_EQ(choice.total_us, (std::map<int, double>{{0, 650}, {2, 570}}));
  // Where both did not overlap there is no time.
  rows.push_back(beside(8, 1 << 24, 1, 1)), rows.back().collective_beside = {};
  EXPECT_EQ(choose_channels(rows).channels, 2);
}

TEST(ChannelChoice, IsTheLibrarysWhereNothingIsBetter) {
  EXPECT_EQ(choose_channels({}).channels, 0);
  EXPECT_EQ(choose_channels({beside(0, 1 << 20, 100, 50), beside(4, 1 << 20, 100, 50)}).channels, 0);
  EXPECT_EQ(choose_channels({beside(4, 1 << 20, 1, 1)}).channels, 0) << "without its own to compare with";
  ProfileRow product = beside(4, 1 << 20, 1, 1);
  std::get<BesidePoint>(product.point).kernel = ProductPoint{64, 64, 64};
  EXPECT_EQ(choose_channels({beside(0, 1 << 20, 100, 50), product}).channels, 0) << "no attention";
}

TEST(ChannelChoice, GoesIntoTheSoftwareWithWhatIsKeptThen) {
  const std::vector<ProfileRow> rows = {beside(0, 1 << 20, 100, 50), beside(8, 1 << 20, 95, 45)};
  const auto profile = measured_software("mine", rows, some_machine());
  ASSERT_TRUE(profile);
  EXPECT_THAT(profile->measured, ElementsAre("forward_progress", "max_ctas"));
  EXPECT_EQ(profile->software.max_ctas, 8);
  EXPECT_DOUBLE_EQ(profile->software.forward_progress, 90.0 / 95);
  const sim::SoftwareProfile read = sim::read_software(profile->text, "mine.software.txtpb");
  EXPECT_EQ(read.max_ctas, 8);
  EXPECT_THAT(sim::find_source(read.sources, "max_ctas")->provenance.source,
              HasSubstr("1 pairs: 150 us with as many as NCCL chooses, 140 us with 8"));
  ProfileMachine shared = some_machine();
  shared.world.shared_gpu = true;
  EXPECT_FALSE(measured_software("mine", rows, shared));
}

// For cprun --software; what the scenario says comes first.
TEST(ChannelChoice, IsThatOfTheCommunicatorsUnlessTheScenarioSaysMore) {
  EXPECT_EQ(nccl_options({}).max_ctas, std::nullopt);
  EXPECT_EQ(nccl_options({}, "cprun").max_ctas, std::nullopt) << "nothing was measured";
  const TemporaryFolder folder;
  const std::string mine = folder.file("mine.software.txtpb");
  const auto profile =
      measured_software("mine", {beside(0, 1 << 20, 100, 50), beside(8, 1 << 20, 95, 45)}, some_machine());
  std::ofstream(mine) << profile->text;
  EXPECT_EQ(nccl_options({}, mine).max_ctas, 8);
  EXPECT_EQ(nccl_options({}, mine).min_ctas, std::nullopt);
  proto::Nccl nccl;
  nccl.set_min_ctas(12);
  EXPECT_EQ(nccl_options(nccl, mine).max_ctas, std::nullopt);
  EXPECT_EQ(nccl_options(nccl, mine).min_ctas, 12);
  nccl.clear_min_ctas(), nccl.set_max_ctas(3);
  EXPECT_EQ(nccl_options(nccl, mine).max_ctas, 3);
}

TEST(SoftwareProfile, OfRanksOfOneGpuSaysNothingOfWhatOverlaps) {
  ProfileMachine machine = some_machine();
  machine.world.shared_gpu = true;
  const auto profile = measured_software("mine", some_rows(), machine);
  ASSERT_TRUE(profile);
  EXPECT_THAT(profile->measured, ElementsAre("collective_issue_us", "kernel_issue_us", "merge_passes",
                                             "pack_passes", "transfer_issue_us"));
}

TEST(SoftwareProfile, OfNothingIsNone) {
  EXPECT_FALSE(measured_software("mine", {some_rows().front()}, some_machine()));
}

TEST(ProfileCsv, HasALineForEachFigure) {
  const std::vector<ProfileRow> rows = some_rows();
  std::size_t figures = 0;
  for (const ProfileRow& row : rows) figures += std::holds_alternative<BesidePoint>(row.point) ? 4 : 1;
  const std::vector<sim::CsvRow> table = sim::read_csv(profile_csv(rows), "profile.csv");
  ASSERT_EQ(table.size(), figures);
  EXPECT_EQ(table.front().text("what"), name(rows.front().point));
  EXPECT_DOUBLE_EQ(table.front().number("median_us"), 100);
}

TEST(ProfilePreset, IsFoundByTheGpusName) {
  const std::vector<std::string> presets = sim::cluster_names();
  for (const char* gpu :
       {"NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe",
        "NVIDIA A800-SXM4-80GB", "NVIDIA H800", "NVIDIA B200", "NVIDIA GB200", "NVIDIA L20"})
    EXPECT_THAT(presets, ::testing::Contains(preset_of_gpu(gpu))) << gpu;
  EXPECT_EQ(preset_of_gpu("NVIDIA H200"), "hgx-h200");
  EXPECT_EQ(preset_of_gpu("NVIDIA A100 80GB PCIe"), "a100-pcie");
  EXPECT_THAT(preset_of_gpu("CPU"), IsEmpty());
}

}  // namespace
}  // namespace cp::cli
