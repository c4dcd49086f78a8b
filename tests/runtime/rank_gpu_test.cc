#include "runtime/rank_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/messages.h"

namespace cp::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobEnvironment process(std::int32_t local_rank, bool allow_shared_gpu = false) {
  JobEnvironment job;
  job.local_rank = local_rank, job.allow_shared_gpu = allow_shared_gpu;
  return job;
}

TEST(RankGpu, TheIthProcessHasTheIthGpu) {
  for (std::int32_t local_rank = 0; local_rank < 4; ++local_rank)
    EXPECT_EQ(choose_gpu(process(local_rank), 4), local_rank);
}

// Another launcher, or CUDA_VISIBLE_DEVICES, shows each process its own.
TEST(RankGpu, TheOnlyOneThatAProcessSeesIsItsOwn) { EXPECT_EQ(choose_gpu(process(3), 1), 0); }

TEST(RankGpu, MoreProcessesThanGpusNeedToBeAllowed) {
  EXPECT_EQ(choose_gpu(process(5, true), 4), 1);
  EXPECT_EQ(choose_gpu(process(3, true), 1), 0);
  EXPECT_THAT(testing::message_of([] { choose_gpu(process(4), 2); }),
              AllOf(HasSubstr("process 4 of this machine"), HasSubstr("there are 2; use --nproc-per-node 2"),
                    HasSubstr("--allow-shared-gpu")));
}

TEST(RankGpu, RanksOfOneGpuAreNamed) {
  const GpuOfRank a{"host-a", "0000:65:00", "GPU X", "x"}, b{"host-a", "0000:66:00", "GPU X", "x"},
      elsewhere{"host-b", "0000:65:00", "GPU X", "x"};
  EXPECT_NO_THROW(refuse_shared_gpus({a, b, elsewhere}));
  EXPECT_THAT(testing::message_of([&] {
                refuse_shared_gpus({a, b, elsewhere, a});
              }),
              AllOf(HasSubstr("ranks 0, 3 on host host-a share the GPU GPU X at 0000:65:00"),
                    HasSubstr("use --nproc-per-node 2, or --allow-shared-gpu")));
}

TEST(RankGpu, MachinesOfOneNameAreToldApart) {
  const GpuOfRank a{"localhost", "0000:65:00", "GPU X", "x", "boot 1"},
      b{"localhost", "0000:65:00", "GPU X", "x", "boot 2"};
  EXPECT_NO_THROW(refuse_shared_gpus({a, b}));
  EXPECT_THAT(testing::message_of([&] {
                refuse_shared_gpus({a, b, b});
              }),
              HasSubstr("ranks 1, 2 on host localhost share the GPU GPU X"));
  EXPECT_EQ(ranks_beside({a, b, b}, 0), std::vector<Rank>{0});
  EXPECT_EQ(ranks_beside({a, b, b}, 2), (std::vector<Rank>{1, 2}));
}

TEST(RankGpu, DifferentTargetsAreNamedWithTheirRanks) {
  const GpuOfRank a{"h", "0", "A100", "sm80"}, b{"h", "1", "H100", "sm90"};
  EXPECT_THAT(differing_targets({a, a}), IsEmpty());
  EXPECT_EQ(differing_targets({a, b, b}), "sm80 (A100) on rank 0, and sm90 (H100) on ranks 1, 2");
}

}  // namespace
}  // namespace cp::runtime
