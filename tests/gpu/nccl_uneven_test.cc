// Ranks that prepare unevenly, and collectives that wait for honest work.
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/errors.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/planned_work.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "tests/gpu/gpu_ranks.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/devices.h"
#endif

namespace cp {
namespace {

using runtime::NcclDevice;
using runtime::NcclOptions;
using std::chrono::milliseconds;
using testing::GpuJob;
using testing::kNothing2;

// ---- the patience of the watchdog

#ifdef CP_GPU_EMULATED
constexpr milliseconds kShortTimeout{3'000};  // a busy machine is late by a second
#else
constexpr milliseconds kShortTimeout{5'000};  // the first collective connects, which counts
#endif

// `count` sums; before them, on rank 1, kernels that would take `planned` at worst.
Plan sums_behind_work(Rank self, int count, milliseconds planned) {
  PlanBuilder b(self, host_target());
  const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
  if (self == 1) {
    b.begin_repeat(static_cast<std::int64_t>(static_cast<double>(planned.count()) / 1000 /
                                             runtime::SlowestRates::kLaunchSeconds));
    b.add(b.stream("main"), Scale{x, 1});
    b.end_repeat();
  }
  for (int i = 0; i < count; ++i)
    b.add(b.stream("main"), AllReduce{b.group("all", {0, 1}), ReduceOp::sum, x, x});
  return std::move(b).build({});
}

std::vector<StepRef> collectives_of(const Plan& plan) {
  std::vector<StepRef> all;
  for (const StepRef& ref : steps_of(plan)) {
    if (is_collective(*ref.step)) all.push_back(ref);
  }
  return all;
}

// Rank 1 computes for longer than the timeout, as long as its plan says that it may, and rank 0 has heard so.
std::string waits_for_work(const GpuJob& job, Rank rank) {
  NcclOptions options = job.options(rank);
  options.timeout = kShortTimeout;
  NcclDevice device(options);
  const Plan plan = sums_behind_work(rank, 2, std::chrono::minutes(5));
  device.prepare(plan, {});
  const std::vector<StepRef> sums = collectives_of(plan);
  device.launch(sums[0], 0);  // connects
  device.synchronize();
  if (rank == 1) std::this_thread::sleep_for(2 * kShortTimeout);
  device.launch(sums[1], 0);
  device.synchronize();
  return "";
}

TEST(NcclUneven, WorkThatWasPlannedIsWaitedFor) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return waits_for_work(job, rank); }), kNothing2);
}

// It says how long it waited, and for what.
std::string times_out(const GpuJob& job, Rank rank) {
  NcclOptions options = job.options(rank);
  options.timeout = kShortTimeout;
  const auto meet_at_the_end = [&options] { options.agree({"end of the test", {0, 1}}, 0, ""); };
  NcclDevice device(options);
  const Plan plan = sums_behind_work(rank, 2, milliseconds(1'500));
  device.prepare(plan, {});
  const std::vector<StepRef> sums = collectives_of(plan);
  device.launch(sums[0], 0);  // connects
  device.synchronize();
  std::string said = "no error";
  try {
    if (rank == 0) device.launch(sums[1], 0);
    if (rank == 0) device.synchronize();
  } catch (const runtime::Timeout& error) {
    said = error.what();
  }
  meet_at_the_end();
  if (rank == 1) return "";                                 // silent until rank 0 had its error
  const double planned = options.each_is_a_host ? 3 : 1.5;  // ranks of one GPU have it by turns
  const double seconds = static_cast<double>(kShortTimeout.count()) / 1000 + planned;
  const std::string expected =
      str("no progress for ", seconds, " s, ", planned, " s of which the plan's kernels may take");
  return said.find(expected) != std::string::npos ? "" : said;
}

TEST(NcclUneven, SilenceBeyondThePlannedWorkIsATimeout) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return times_out(job, rank); }), kNothing2);
}

#ifdef CP_GPU_EMULATED

// ---- graphs

AttentionRequest fused_ring(std::int64_t head_dim = 64) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 128;
  problem.q_heads = problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = head_dim;
  problem.dtype = DType::bf16, problem.causal = true;
  return {problem, {0, 1}, named_strategy({"ring", {}, {}}, problem, 2)};
}

// For how long the GPU of rank 1 builds each graph.
class SlowBuilder {
 public:
  explicit SlowBuilder(milliseconds time) { emulated::set_build_time(1, time); }
  ~SlowBuilder() { emulated::set_build_time(1, milliseconds(0)); }
  SlowBuilder(const SlowBuilder&) = delete;
  SlowBuilder& operator=(const SlowBuilder&) = delete;
};

// Beyond every timeout, whether groups have ids of their own or are split from the world's, and whether the
// plan is prepared or kept.
TEST(NcclUneven, NobodysTimeCountsWhileAPeerBuilds) {
  const SlowBuilder slow(3 * kShortTimeout);
  for (const bool split : {false, true}) {
    const GpuJob job(2);
    const auto run = [&](Rank rank) -> std::string {
      NcclOptions options = split ? job.splitting_options(rank) : job.options(rank);
      options.timeout = kShortTimeout;
      options.connect_timeout = kShortTimeout;
      NcclDevice device(options);
      const Plan plan =
          attention_plan(fused_ring(), AttentionPass::forward, rank, testing::target_of_the_gpus());
      if (split) {
        device.use(device.keep(plan, {}, 0), {});
      } else {
        device.prepare(plan, {});
      }
      enqueue_steps(plan, device);
      device.synchronize();
      return "";
    };
    EXPECT_EQ(testing::run_gpu_ranks(2, run), kNothing2) << split;
  }
}

// The GPU of rank 1 has no backward kernel for such heads. Both ranks are told at once, and can go on.
TEST(NcclUneven, APeerThatCannotBuildIsAnErrorOfAllAndDevicesStayGood) {
  const GpuJob job(2);
  const auto run = [&](Rank rank) -> std::string {
    NcclDevice device(job.options(rank));
    const AttentionRequest request = fused_ring();
    Plan plan = attention_plan(request, AttentionPass::forward, rank, testing::target_of_the_gpus());
    Plan broken = plan;
    for (Segment& segment : broken.segments) {
      Step* step = std::get_if<Step>(&segment);
      if (rank == 0 || step == nullptr) continue;
      Kernel* kernel = std::get_if<Kernel>(&step->work);
      auto* attention = kernel == nullptr ? nullptr : std::get_if<AttentionForward>(kernel);
      if (attention != nullptr) attention->slices = {{0, 1, 0, 1, MaskSlice::Kind::full, 0, 0}, {5, 1, 0, 1}};
    }
    const std::string expected = rank == 0 ? "rank 1 cannot prepare its plan: step " : "2 mask slices over";
    try {
      device.prepare(broken, {});
      return "no error";
    } catch (const Error& error) {
      std::string said = error.what();
      if (said.find(expected) == std::string::npos) return said;
      const ErrorKind kind = rank == 0 ? ErrorKind::peer_lost : ErrorKind::invalid_input;
      if (error.kind() != kind) return "another kind of error";
    }
    execute(plan, device);
    return "";
  };
  EXPECT_EQ(testing::run_gpu_ranks(2, run), kNothing2);
}

#endif

}  // namespace
}  // namespace cp
