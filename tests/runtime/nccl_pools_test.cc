#include "runtime/nccl_pools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/support/messages.h"

namespace cp::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kDocker = std::int64_t{64} << 20;

const Group kPair = {"cp", {0, 1}}, kFour = {"dp", {0, 1, 2, 3}}, kAlone = {"tp", {0}},
            kElsewhere = {"cp", {2, 3}};

TEST(NcclPools, RanksOfOneGpuHaveOneForEachGroup) {
  NcclPools pools({0, 1}, true);
  pools.add({kPair, kAlone}, std::nullopt);
  EXPECT_EQ(pools.count(), 2);
  pools.add({kPair, kFour, kElsewhere}, std::nullopt);  // the pair is connected
  EXPECT_EQ(pools.count(), 4);
}

TEST(NcclPools, GroupsWithinAMachineNeedNone) {
  NcclPools pools({0, 1}, false);
  pools.add({kPair, kAlone}, 0);
  EXPECT_EQ(pools.count(), 0);
  pools.add({kFour}, std::nullopt);
  EXPECT_EQ(pools.count(), 1);
}

TEST(NcclPools, TooLittleSharedMemoryIsNamedWithWhatHelps) {
  EXPECT_NO_THROW(NcclPools({0, 1}, true).add({kPair}, 2 * kNcclPoolBytes));
  EXPECT_NO_THROW(NcclPools({0, 1}, false).add({kPair, kFour}, kDocker));
  const std::string message = testing::message_of([] { NcclPools({0, 1}, true).add({kPair}, kDocker); });
  EXPECT_THAT(message, HasSubstr("NCCL needs 65.26 MiB of /dev/shm on this machine, which has 64 MiB: each "
                                 "rank here takes 32.63 MiB"));
  EXPECT_THAT(message, HasSubstr("docker run --shm-size 2g, or --ipc host"));
}

TEST(NcclPools, GroupsThatWereRefusedDoNotCount) {
  NcclPools pools({0, 1}, true);
  EXPECT_THROW(pools.add({kPair, kFour}, 2 * kNcclPoolBytes), InvalidInput);
  EXPECT_NO_THROW(pools.add({kPair}, 2 * kNcclPoolBytes));
  EXPECT_EQ(pools.count(), 2);
}

TEST(NcclPools, GroupsThatWereGivenBackDoNotCount) {
  NcclPools pools({0, 1}, true);
  pools.add({kPair, kFour}, std::nullopt);
  pools.remove(kPair);
  pools.remove(kPair);
  pools.remove(kElsewhere);  // never added
  EXPECT_EQ(pools.count(), 2);
  EXPECT_NO_THROW(pools.add({kPair}, 4 * kNcclPoolBytes));
}

TEST(NcclPools, ErrorsOfNcclAboutSharedMemoryAreExplained) {
  EXPECT_THAT(
      std::string(shared_memory_advice("unhandled system error (Error while creating shared memory segment "
                                       "/dev/shm/nccl-ZQXkWv (size 34210176), error: No space left)")),
      HasSubstr("docker run --shm-size 2g"));
  EXPECT_THAT(std::string(shared_memory_advice("unhandled cuda error")), IsEmpty());
}

}  // namespace
}  // namespace cp::runtime
