#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {
namespace {

using ::testing::ElementsAre;

std::vector<LayoutItem> items(const char* text) { return items_of(parse_parallel_layout(text)); }

TEST(LayoutItems, AreTheKeysAndValuesOfTheText) {
  EXPECT_THAT(items("tp=2,cp=8,strategy=ring,balance=head_tail,recompute=every:2,micro_batch=4"),
              ElementsAre(LayoutItem{"tp", "2"}, LayoutItem{"cp", "8"}, LayoutItem{"strategy", "ring"},
                          LayoutItem{"balance", "head_tail"}, LayoutItem{"micro_batch", "4"},
                          LayoutItem{"recompute", "every:2"}));
  EXPECT_THAT(items("cp=4,strategy=ulysses,zero=2,activations=host"),
              ElementsAre(LayoutItem{"cp", "4"}, LayoutItem{"strategy", "ulysses"},
                          LayoutItem{"balance", "contiguous"}, LayoutItem{"zero", "2"},
                          LayoutItem{"activations", "host"}));
}

TEST(LayoutItems, SayOneDegreeWhereAllIsDefault) {
  EXPECT_THAT(items("tp=1"), ElementsAre(LayoutItem{"tp", "1"}));
  EXPECT_EQ(to_string(ParallelLayout{}), "tp=1");
}

TEST(LayoutItems, JoinedAreTheText) {
  for (const char* text :
       {"tp=2,cp=2,dp_shard=4,strategy=ring,balance=contiguous,sharding=dp_shard,order=cp-tp-dp-pp",
        "cp=8,strategy=ring,ulysses_degree=2,axis_order=ring_inner,rotation=all_gather,balance=head_tail",
        "cp=8,strategy=ring,ulysses_degree=2,balance=head_tail,slots=3,pieces=4,merges=beside",
        "tp=2,pp=4,virtual_stages=2,sequence_parallel=no,loss_chunks=4,mlp_chunks=2"}) {
    const ParallelLayout layout = parse_parallel_layout(text);
    EXPECT_EQ(to_string(layout), text);
    EXPECT_EQ(join(items_of(layout)), text);
  }
}

}  // namespace
}  // namespace cp
