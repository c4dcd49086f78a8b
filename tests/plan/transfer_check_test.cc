// Traces of a run in which something was lost or changed between two ranks.
#include "shared/plan/transfer_check.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three ranks, 4, 5 and 6, that exchange 8 bytes with one another, twice.
std::vector<RankTrace> right_traces() {
  std::vector<RankTrace> traces;
  for (std::size_t index = 0; index < 3; ++index) {
    RankTrace& trace = traces.emplace_back();
    trace.rank = static_cast<Rank>(4 + index);
    for (const std::int64_t sequence : {0, 1}) {
      OpRecord record;
      record.operation = "exchange";
      record.group = {"g", {4, 5, 6}};
      record.sequence = sequence;
      record.sent = record.received = {8, 8, 8};
      record.sent[index] = record.received[index] = 0;
      trace.issued.push_back(record);
      record.checksums = PayloadChecksums{.sent = {0, 0, 0}, .received = {0, 0, 0}};
      for (std::size_t peer = 0; peer < 3; ++peer) {
        if (peer == index) continue;
        record.checksums->sent[peer] = 10 * index + peer;
        record.checksums->received[peer] = 10 * peer + index;
      }
      trace.observed.push_back(record);
    }
  }
  return traces;
}

TEST(TransferCheck, RightTracesPass) {
  EXPECT_FALSE(find_transfer_fault(right_traces()));
  EXPECT_FALSE(find_transfer_fault({}));
}

TEST(TransferCheck, AChangedPayloadNamesTheTransferAndBothChecksums) {
  std::vector<RankTrace> traces = right_traces();
  traces[2].observed[1].checksums->received[0] = 0xbeef;
  const auto fault = find_transfer_fault(traces);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind(), ErrorKind::check_failed);
  EXPECT_STREQ(fault->what(),
               "exchange #1 on g[4,5,6]: from rank 4 to rank 6 the payload changed on its way: checksum "
               "0x0000000000000002 where it was sent, 0x000000000000beef where it arrived");
  EXPECT_EQ(fault->facts(), (ErrorFacts{.culprits = {4, 6},
                                        .sender = 4,
                                        .receiver = 6,
                                        .operation = "exchange",
                                        .group = "g[4,5,6]",
                                        .sequence = 1}));
}

TEST(TransferCheck, TheFirstOneIsNamed) {
  std::vector<RankTrace> traces = right_traces();
  traces[0].observed[1].checksums->received[2] = 1;
  traces[2].observed[0].checksums->received[1] = 1;
  EXPECT_EQ(find_transfer_fault(traces)->facts().sequence, 0);
  EXPECT_EQ(find_transfer_fault(traces)->facts().sender, 5);
}

TEST(TransferCheck, LostBytesAreFoundWithoutChecksums) {
  std::vector<RankTrace> traces = right_traces();
  for (RankTrace& trace : traces) {
    for (OpRecord& record : trace.observed) record.checksums.reset();
  }
  EXPECT_FALSE(find_transfer_fault(traces));
  traces[1].observed[0].received[2] = 3;
  const auto fault = find_transfer_fault(traces);
  ASSERT_TRUE(fault);
  EXPECT_THAT(fault->what(), HasSubstr("from rank 6 to rank 5 3 bytes arrived, but 8 were sent"));
  EXPECT_THAT(fault->facts().culprits, ElementsAre(5, 6));
}

TEST(TransferCheck, ARankWithoutChecksumsOrWithoutATraceIsNoFault) {
  std::vector<RankTrace> traces = right_traces();
  traces[1].observed[0].checksums.reset();
  traces.pop_back();
  EXPECT_FALSE(find_transfer_fault(traces));
}

TEST(TransferCheck, OutputsOfAnAllReduceAreEqual) {
  std::vector<RankTrace> traces = right_traces();
  for (RankTrace& trace : traces) trace.observed[0].checksums->result = 7;
  EXPECT_FALSE(find_transfer_fault(traces));
  traces[1].observed[0].checksums->result = 8;
  const auto fault = find_transfer_fault(traces);
  ASSERT_TRUE(fault);
  EXPECT_THAT(fault->what(), HasSubstr("rank 5 has 0x0000000000000008"));
  EXPECT_THAT(fault->facts().culprits, ElementsAre(5));
  EXPECT_EQ(fault->facts().sender, -1);
}

}  // namespace
}  // namespace cp
