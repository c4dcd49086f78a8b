// Two ranks that have one GPU.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/plan/builder.h"
#include "tests/gpu/gpu_processes.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/support/fabric_run.h"
#include "tests/support/hand_plans.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::GpuJob;

using NcclSharedGpu = testing::GpuProcesses;

NcclOptions on_first_gpu(NcclOptions options) {
  options.cuda_device = 0;
  return options;
}

// Both kinds of communicators: of an id of their own, and split from the world's.
int run_hand_plans() {
  const std::vector<testing::PlanCase> cases = testing::hand_plans(2);
  const std::vector<testing::FabricRun> fabric = testing::run_on_fabric(cases);
  const GpuJob own(2), split(2);
  return testing::run_gpu_processes(2, [&](Rank rank) {
    testing::share_gpu(rank);
    std::string wrong;
    for (const NcclOptions& options : {own.options(rank), split.splitting_options(rank)}) {
      NcclDevice device(on_first_gpu(options));
      for (std::size_t i = 0; i < cases.size() && wrong.empty(); ++i)
        wrong = testing::compare_with_fabric(cases[i], fabric[i], device);
    }
    return wrong;
  });
}

TEST_F(NcclSharedGpu, RanksThatMayShareOneRunTheHandPlansLikeTheFabric) { CP_EXPECT_RIGHT(run_hand_plans()); }

int connect_without_leave() {
  const GpuJob job(2);
  return testing::run_gpu_processes(2, [&](Rank rank) -> std::string {
    testing::share_no_gpu();
    NcclDevice device(on_first_gpu(job.options(rank)));
    PlanBuilder b(rank, host_target());
    const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
    b.add(b.stream("main"), AllReduce{b.group("all", {0, 1}), ReduceOp::sum, x, x});
    const Plan plan = std::move(b).build({});
    const std::string said = testing::message_of([&] { device.prepare(plan, {}); });
    for (const char* words :
         {"cannot connect group all[0,1]", "; give each rank a GPU of its own, or use --allow-shared-gpu"}) {
      if (said.find(words) == std::string::npos) return said;
    }
    return "";
  });
}

TEST_F(NcclSharedGpu, RanksThatMayNotAreToldHow) { CP_EXPECT_RIGHT(connect_without_leave()); }

}  // namespace
}  // namespace cp
