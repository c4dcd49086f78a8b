// A trace that is written while its pass runs: everything once, in its order, and early.
#include "cli/cprun/job/running_trace.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using cli::RunningTrace;
using cli::TemporaryFolder;
using ::testing::IsEmpty;
using ::testing::SizeIs;

OpRecord record(StreamId stream, std::int64_t sequence) {
  OpRecord record;
  record.stream = stream;
  record.operation = "all_gather";
  record.group = {"cp", {0, 1}};
  record.sequence = sequence;
  record.sent = record.received = {0, 8};
  return record;
}

// What a pass leaves behind.
RankTrace whole(std::int64_t count) {
  RankTrace pass;
  pass.rank = 1;
  pass.clock_offset_ns = 7;
  for (std::int64_t i = 0; i < count; ++i) {
    for (const StreamId stream : {0, 1}) {
      pass.issued.push_back(record(stream, i));
      pass.observed_times.push_back({stream, "all_gather", "", i, i + 1});
    }
  }
  pass.observed = pass.issued;
  std::ranges::stable_sort(pass.observed, {}, &OpRecord::stream);
  std::ranges::stable_sort(pass.observed_times, {}, &TimedOp::stream);
  return pass;
}

class Running : public ::testing::Test {
 protected:
  RankTrace written() const {
    const TraceFile file = read_trace_file(folder_.file("rank-1.cptrace"));
    return file.ranks.empty() ? RankTrace{} : file.ranks.at(0);
  }

  TemporaryFolder folder_;
  RunningTrace trace_{folder_.file("rank-1.cptrace")};
};

// A pass that is over before anything was written.
TEST_F(Running, AShortPassIsWrittenWhenItEnds) {
  RankTrace pass;
  pass.rank = 1, pass.clock_offset_ns = 7;
  trace_.begin_pass(pass);
  pass = whole(3);
  trace_.issued();
  for (const OpRecord& one : pass.issued) trace_.observed(one);
  trace_.end_pass();
  EXPECT_EQ(written(), pass);
  EXPECT_EQ(written().observed_times, pass.observed_times);
  trace_.finish();
  EXPECT_EQ(read_trace_file(folder_.file("rank-1.cptrace")).truncation, std::nullopt);
}

TEST_F(Running, ALongOneAsItGoes) {
  RankTrace pass;
  pass.rank = 1, pass.clock_offset_ns = 7;
  trace_.begin_pass(pass);
  RankTrace all = whole(100);
  for (int i = 0; i < 60; ++i) trace_.observed(all.issued[static_cast<std::size_t>(i)]);
  ASSERT_TRUE(within(60s, [&] { return written().observed.size() == 60; }));
  EXPECT_THAT(written().issued, IsEmpty()) << "they are still being asked for";
  pass.issued = all.issued;
  trace_.issued();
  ASSERT_TRUE(within(60s, [&] { return written().issued.size() == 200; }));
  for (int i = 60; i < 130; ++i) trace_.observed(all.issued[static_cast<std::size_t>(i)]);
  ASSERT_TRUE(within(60s, [&] { return written().observed.size() == 130; }));
  pass = all;
  trace_.end_pass();
  RankTrace found = written();
  std::ranges::stable_sort(found.observed, {}, &OpRecord::stream);
  EXPECT_EQ(found, all);
  EXPECT_EQ(found.clock_offset_ns, 7);

  RankTrace next;  // counts from the first again
  next.rank = 1;
  trace_.begin_pass(next);
  next = whole(2);
  trace_.end_pass();
  EXPECT_THAT(written().issued, SizeIs(204));
  EXPECT_THAT(written().observed, SizeIs(204));
}

// Of a warm-up, for one.
TEST_F(Running, WhatComesBetweenPassesIsNoPartOfThem) {
  trace_.observed(record(0, 0));
  RankTrace pass;
  pass.rank = 1, pass.clock_offset_ns = 7;
  trace_.begin_pass(pass);
  trace_.end_pass();
  trace_.observed(record(0, 0));
  EXPECT_THAT(written().observed, IsEmpty());
}

}  // namespace
}  // namespace cp::testing
