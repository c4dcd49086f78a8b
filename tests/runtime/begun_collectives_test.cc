#include "runtime/begun_collectives.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/builder.h"

namespace cp::runtime {
namespace {

// A kernel, and two sums of as many elements on the group {0, 1}.
Plan two_sums(Rank self, std::int64_t numel, std::string_view inputs) {
  PlanBuilder b(self, host_target());
  const StreamId stream = b.stream("main");
  const GroupId group = b.group("g", {0, 1});
  const View x = flat_view(b.inout("x", DType::f32, numel), 0, numel);
  b.add(stream, Scale{x, 2});
  for (int i = 0; i < 2; ++i) b.add(stream, AllReduce{group, ReduceOp::sum, x, x});
  return std::move(b).build(Hasher().add(inputs).digest());
}

TEST(BegunCollectives, DigestsAreByStepAndTheSameOnAllMembers) {
  const std::vector<Digest> digests = collective_digests(two_sums(0, 4, "a"));
  ASSERT_EQ(digests.size(), 3U);
  EXPECT_EQ(digests[0], Digest{});
  EXPECT_NE(digests[1], Digest{});
  EXPECT_EQ(digests[1], digests[2]);
  EXPECT_EQ(collective_digests(two_sums(1, 4, "a")), digests);
  EXPECT_NE(collective_digests(two_sums(0, 5, "a"))[1], digests[1]);
  EXPECT_NE(collective_digests(two_sums(0, 4, "b"))[1], digests[1]);  // another plan
}

TEST(BegunCollectives, CountsAndDigestsAllSoFar) {
  const Digest first = collective_digests(two_sums(0, 4, "a"))[1],
               other = collective_digests(two_sums(0, 5, "a"))[1];
  BegunCollectives begun;
  const auto one = begun.begin(first);
  EXPECT_EQ(one.number, 0);
  EXPECT_EQ(one.sequence, 0);
  EXPECT_EQ(one.digest, continued({}, first));
  begun.reset_sequence();
  const auto two = begun.begin(first);
  EXPECT_EQ(two.number, 1);
  EXPECT_EQ(two.sequence, 0);
  EXPECT_EQ(two.digest, continued(one.digest, first));
  EXPECT_EQ(begun.next_sequence(), 1);
  // Who began something else stays different, whatever comes after it.
  BegunCollectives differs;
  differs.begin(other);
  EXPECT_NE(differs.begin(first).digest, two.digest);
}

}  // namespace
}  // namespace cp::runtime
