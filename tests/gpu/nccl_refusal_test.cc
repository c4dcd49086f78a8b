// What the NCCL device refuses, before anything runs.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/support/hand_plans.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::all_reduce_plan;
using testing::GpuJob;
using testing::kNothing1;

TEST(NcclRefusal, RefusesPlansThatAreNotItsOwn) {
  CP_REQUIRE_GPU();
  const GpuJob job(1);
  const auto run = [&](Rank rank) -> std::string {
    NcclDevice device(job.options(rank));
    const Plan other = all_reduce_plan(1, {1});
    std::string said = testing::message_of([&] { device.prepare(other, {}); });
    if (!said.starts_with("the plan of rank 1 cannot run on the nccl device of rank 0; ")) return said;
    PlanBuilder b(rank, shape_target());
    const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
    b.add(b.stream("s"), RowKernel{RowOperation::gated_norm, {}, {}, {x}}, "turn");
    const Plan lacking = std::move(b).build({});
    said = testing::message_of([&] { device.prepare(lacking, {}); });
    if (said.find("no operation gated_norm without a rule (step 0 \"turn\")") == std::string::npos)
      return said;
    const Plan plan = all_reduce_plan(0, {0});
    device.prepare(plan, {});  // as good as before
    device.synchronize();
    return "";
  };
  EXPECT_EQ(testing::run_gpu_ranks(1, run), kNothing1);
}

TEST(NcclRefusal, AGpuThatIsNotThereIsRefusedWithTheNumberThatAre) {
  CP_REQUIRE_GPU();
  const auto run = [&](Rank) -> std::string {
    const std::string said = testing::message_of([] {
      NcclOptions options;
      options.cuda_device = 99;
      const NcclDevice device(options);
    });
    return said == str("there is no GPU 99; this process sees ", runtime::gpu_count(), ", numbered from 0")
               ? ""
               : said;
  };
  EXPECT_EQ(testing::run_gpu_ranks(1, run), kNothing1);
}

}  // namespace
}  // namespace cp
