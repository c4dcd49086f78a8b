#include "runtime/rendezvous/compare_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rendezvous/test_job.h"

namespace cp {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `collectives` exchanges of all three ranks.
RankTrace trace_of(Rank rank, std::int64_t collectives) {
  RankTrace trace;
  trace.rank = rank;
  for (std::int64_t sequence = 0; sequence < collectives; ++sequence) {
    OpRecord record;
    record.operation = "exchange";
    record.group = {"g", {0, 1, 2}};
    record.sequence = sequence;
    record.sent = record.received = {8, 8, 8};
    record.checksums = PayloadChecksums{.sent = {7, 7, 7}, .received = {7, 7, 7}};
    trace.observed.push_back(record);
  }
  return trace;
}

// The second: more than one gathering holds.
TEST(CompareTransfers, TheReceiverThrows) {
  runtime::RendezvousServer server(testing::server_options(3));
  const auto clients = testing::join_all(server, 3);
  for (const std::int64_t collectives : {4, 20'000}) {
    const auto compare = [&](std::uint64_t received) {
      return testing::run_ranks(3, [&](Rank rank) {
        RankTrace trace = trace_of(rank, collectives);
        if (rank == 2) trace.observed.back().checksums->received[1] = received;
        runtime::compare_transfers(*clients[static_cast<std::size_t>(rank)], trace);
      });
    };
    EXPECT_THAT(compare(7), Each(IsEmpty()));
    const auto errors = compare(8);
    EXPECT_THAT(errors[0], IsEmpty());
    EXPECT_THAT(errors[1], IsEmpty());
    EXPECT_THAT(errors[2],
                HasSubstr(str("exchange #", collectives - 1, " on g[0,1,2]: from rank 1 to rank 2")));
  }
}

}  // namespace
}  // namespace cp
