#include "sim/cost/cluster/used_part.h"

#include <gtest/gtest.h>

#include "sim/cost/cluster/read_cluster.h"

namespace cp::sim {
namespace {

int nodes_used(const char* cluster, int nodes, int gpus) {
  return used_part(find_cluster(cluster, nodes), gpus).nodes;
}

TEST(UsedPart, IsThatOfTheRanksOneNodeMoreAndWholeLeaves) {
  EXPECT_EQ(nodes_used("dgx-h100", 2097152, 8), 32);
  EXPECT_EQ(nodes_used("dgx-h100", 2097152, 248), 32);
  EXPECT_EQ(nodes_used("dgx-h100", 2097152, 256), 64);
  EXPECT_EQ(nodes_used("gb200-nvl72", 1024, 8), 36);  // a domain of 18 nodes, one more, and its leaf
}

TEST(UsedPart, IsTheClusterWhereItIsNoLarger) {
  EXPECT_EQ(nodes_used("dgx-h100", 1, 8), 1);
  EXPECT_EQ(nodes_used("dgx-h100", 20, 8), 20);
  EXPECT_EQ(nodes_used("dgx-h100", 64, 512), 64);
}

}  // namespace
}  // namespace cp::sim
