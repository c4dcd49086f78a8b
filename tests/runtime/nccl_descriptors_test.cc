#include "runtime/nccl_descriptors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/support/messages.h"

namespace cp::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Group kTwoRanks = {"cp", {0, 1}}, kFourRanks = {"dp", {0, 1, 2, 3}}, kOneRank = {"tp", {0}};
constexpr DescriptorLimits kPlenty{10, 1'024, 1'048'576};

TEST(NcclDescriptors, CountPeersByWhereTheyAre) {
  NcclDescriptors hosts({0, 1, 2, 3}, true), one_host({0, 1, 2, 3}, false), two_hosts({0, 1}, false);
  for (NcclDescriptors* all : {&hosts, &one_host, &two_hosts}) all->add({kFourRanks, kOneRank}, kPlenty);
  EXPECT_EQ(hosts.count(), kNcclDescriptors + 3 * kNcclDescriptorsOfPeer);
  EXPECT_EQ(one_host.count(), kNcclDescriptors + 3 * kNcclDescriptorsBeside);
  EXPECT_EQ(two_hosts.count(), kNcclDescriptors + kNcclDescriptorsBeside + 2 * kNcclDescriptorsOfPeer);
}

// The review that asked for this found 50 to 100 of a communicator of eight hosts.
TEST(NcclDescriptors, OfEightHostsAreSomeNinety) {
  NcclDescriptors eight({}, true);
  eight.add({{"cp", {0, 1, 2, 3, 4, 5, 6, 7}}}, kPlenty);
  EXPECT_EQ(eight.count(), 90);
}

TEST(NcclDescriptors, RaiseTheSoftLimitOnlyWhereItDoesNotSuffice) {
  NcclDescriptors descriptors({0, 1}, true);
  EXPECT_EQ(descriptors.add({kTwoRanks}, kPlenty), 1'024);
  EXPECT_EQ(descriptors.add({kTwoRanks}, {10, 20, 1'024}), 20);  // it is connected
  const std::int64_t of_pair = kNcclDescriptors + kNcclDescriptorsOfPeer;
  EXPECT_EQ(NcclDescriptors({0, 1}, true).add({kTwoRanks}, {10, 20, 1'024}), 10 + of_pair + 64);
}

TEST(NcclDescriptors, BeyondTheHardLimitAreRefusedWithWhatHelps) {
  NcclDescriptors descriptors({0, 1}, true);
  EXPECT_THAT(
      testing::message_of([&] {
        descriptors.add({kTwoRanks}, {10, 100, 100});
      }),
      AllOf(HasSubstr("NCCL needs some 42 file descriptors for this rank's 1 groups, beside the 10 that "
                      "are open, and this process may open 100"),
            HasSubstr("ulimit -Hn 116"), HasSubstr("--ulimit nofile=116")));
  EXPECT_EQ(descriptors.count(), 0);
  EXPECT_NO_THROW(descriptors.add({kTwoRanks}, {10, 100, 200}));
  // What is open later on has those of the pair.
  EXPECT_NO_THROW(descriptors.add({kFourRanks}, {60, 100, 200}));
  descriptors.remove(kFourRanks);
  EXPECT_EQ(descriptors.count(), kNcclDescriptors + kNcclDescriptorsOfPeer);
}

TEST(NcclDescriptors, LimitsAreThoseOfThisProcess) {
  const DescriptorLimits limits = descriptor_limits();
  EXPECT_GT(limits.open, 2);
  EXPECT_LE(limits.soft, limits.hard);
  raise_descriptor_limit(limits.soft);  // nothing to raise
  EXPECT_EQ(descriptor_limits().soft, limits.soft);
}

}  // namespace
}  // namespace cp::runtime
