// A step that reaches NCCL with one argument changed, or over other data: comparing the traces finds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/support/corrupted_steps.h"

namespace cp {
namespace {

std::vector<std::string> missed_on_nccl(const std::vector<testing::Corruption>& corruptions) {
  const testing::GpuJob job(testing::kCorruptedRanks);
  const auto said = testing::run_gpu_ranks(testing::kCorruptedRanks, [&](Rank rank) {
    runtime::NcclDevice device(job.options(rank));
    return testing::lines_of_findings(corruptions, device);
  });
  return testing::missed(corruptions, said);
}

TEST(NcclCorruption, EachArgumentIsFound) {
  CP_REQUIRE_GPU();
  EXPECT_THAT(missed_on_nccl(testing::corrupted_arguments()), ::testing::IsEmpty());
}

TEST(NcclCorruption, OrderAndNumberAreFound) {
  CP_REQUIRE_GPU();
  EXPECT_THAT(missed_on_nccl(testing::corrupted_orders()), ::testing::IsEmpty());
}

TEST(NcclCorruption, OneRankIsFound) {
  CP_REQUIRE_GPU();
  EXPECT_THAT(missed_on_nccl(testing::corrupted_ranks()), ::testing::IsEmpty());
}

}  // namespace
}  // namespace cp
