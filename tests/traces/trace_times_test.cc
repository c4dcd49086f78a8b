#include "traces/trace_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/traces/small_traces.h"
#include "traces/record_file.h"

namespace cp {
namespace {

using ::testing::HasSubstr;
using testing::sample_traces;
using ::testing::ThrowsMessage;

TEST(TraceTimes, BelongToTheRecordsOfTheirStreamsInOrder) {
  RankTrace trace = sample_traces(2)[0];
  std::swap(trace.issued_times[0], trace.issued_times[2]);  // across streams the order does not matter
  std::swap(trace.issued_times[0], trace.issued_times[1]);
  const auto times = times_of_records(trace.issued, trace.issued_times, 0);
  ASSERT_EQ(times.size(), 4U);
  for (std::size_t i = 0; i < times.size(); ++i) {
    ASSERT_NE(times[i], nullptr);
    EXPECT_EQ(times[i]->begin_ns, static_cast<std::int64_t>(i) * 1000);
  }
}

TEST(TraceTimes, TheLastMayBeMissing) {
  RankTrace trace = sample_traces(2)[0];
  trace.issued_times.pop_back();
  const auto times = times_of_records(trace.issued, trace.issued_times, 0);
  EXPECT_NE(times[2], nullptr);
  EXPECT_EQ(times[3], nullptr);
}

TEST(TraceTimes, OthersAreABadTrace) {
  RankTrace trace = sample_traces(2)[0];
  trace.issued_times[1].operation = "broadcast";
  EXPECT_THAT(
      [&] { times_of_records(trace.issued, trace.issued_times, 4); },
      ThrowsMessage<BadTrace>(HasSubstr(
          "rank 4, stream 1: operation 0 is all_gather, but the time in its place belongs to broadcast")));
  trace = sample_traces(2)[0];
  trace.issued_times.push_back({3, "copy", "", 0, 1});
  EXPECT_THAT([&] { times_of_records(trace.issued, trace.issued_times, 4); },
              ThrowsMessage<BadTrace>(HasSubstr("stream 3: there are 1 times for 0 operations")));
}

}  // namespace
}  // namespace cp
