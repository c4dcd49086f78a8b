// What the NCCL device tells about a run: when its steps ran, and which collectives began.
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/begun_collectives.h"
#include "runtime/nccl/nccl_calls.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/base/text.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/support/hand_plans.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::GpuJob;
using testing::PlanCase;

TEST(NcclTimes, TellsWhenStepsRanAndWhichCollectivesBegan) {
  CP_REQUIRE_GPU();
  const PlanCase plan_case = testing::prefetched_blocks(2, 3);
  const GpuJob job(2);
  const auto run_twice = [&](Rank rank) -> std::string {
    std::map<std::string, std::vector<std::int64_t>> began, ended;  // numbers, by group
    std::map<std::string, Digest> digests;                          // of all on the group
    std::string wrong;
    std::mutex mutex;
    NcclOptions options = job.options(rank);
    options.on_collective = [&](const runtime::CollectiveBegin& begin) {
      const std::lock_guard lock(mutex);
      began[begin.group.name].push_back(begin.number);
      const Step* const step = steps_of(begin.plan)[static_cast<std::size_t>(begin.step)].step;
      Digest& digest = digests[begin.group.name];
      digest = runtime::continued(
          digest, runtime::collective_digests(begin.plan).at(static_cast<std::size_t>(begin.step)));
      if (begin.digest != digest) wrong = str(begin.group.name, " #", begin.number, ": another digest");
      if (begin.stream != step->stream)
        wrong = str(begin.group.name, " #", begin.number, ": stream ", begin.stream);
    };
    options.on_collective_end = [&](const runtime::CollectiveEnd& end) {
      const std::lock_guard lock(mutex);
      ended[end.collective.group.name].push_back(end.collective.number);
    };
    NcclDevice device(options);
    for (int run = 0; run < 2; ++run) {
      const Plan& plan = plan_case.plans[static_cast<std::size_t>(rank)];
      RankTrace trace;
      run_plan_case(plan_case, rank, device, &trace);
      const runtime::DeviceTimes times = device.take_times();
      if (times.steps.size() != trace.issued.size())
        return str(times.steps.size(), " times of ", trace.issued.size(), " steps");
      if (times.collectives.size() != device.take_observed().size()) return "times of other collectives";
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
      if (!wrong.empty()) return wrong;
      if (ended != began) return "others ended than began";
      for (const auto& [group, count] : expected) {
        std::vector<std::int64_t> numbers(static_cast<std::size_t>((run + 1) * count));
        std::iota(numbers.begin(), numbers.end(), 0);
        if (began[group] != numbers) return str(group, ": began ", join(began[group]));
      }
    }
    return "";
  };
  EXPECT_EQ(testing::run_gpu_ranks(2, run_twice), std::vector<std::string>(2));
}

}  // namespace
}  // namespace cp
