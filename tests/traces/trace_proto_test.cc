#include "traces/trace_proto.h"

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"
#include "tests/support/plan_generators.h"
#include "traces/types_proto.h"

namespace cp {

void showValue(const RankTrace& trace, std::ostream& out) { out << to_proto(trace).DebugString(); }

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;

Environment any_environment(testing::PlanDraw& draw) {
  Environment environment;
  environment.host = draw.text();
  environment.host_is_hashed = *rc::gen::arbitrary<bool>();
  environment.pid = draw.number<std::int64_t>(0, 1 << 22);
  environment.backend = draw.text();
  for (int i = draw.number(0, 3); i > 0; --i) environment.libraries[draw.text()] = draw.text();
  environment.cpsim_version = draw.text();
  environment.world_size = draw.number<std::int32_t>(0, 1 << 20);
  environment.start_unix_ns = *rc::gen::arbitrary<std::int64_t>();
  if (*rc::gen::arbitrary<bool>()) environment.scenario_digest = draw.digest();
  return environment;
}

RankTrace any_trace(Rank rank) {
  return pick_case("trace", [=] {
    testing::PlanDraw draw;
    const auto record = [&] {
      OpRecord op;
      op.stream = draw.number<StreamId>(0, 5);
      op.operation = draw.text();
      if (*rc::gen::arbitrary<bool>()) op.group = draw.group();
      op.sequence = draw.number<std::int64_t>(-1, std::int64_t{1} << 40);
      op.dtype = draw.dtype();
      if (*rc::gen::arbitrary<bool>()) op.reduction = draw.reduce_op();
      op.root = draw.number<std::int32_t>(-1, 100);
      const auto bytes = [&] { return draw.number<std::int64_t>(0, std::int64_t{1} << 50); };
      op.sent = draw.list<std::int64_t>(0, 4, bytes);
      op.received = draw.list<std::int64_t>(0, 4, bytes);
      return op;
    };
    const auto observed_record = [&] {
      OpRecord op = record();
      if (!*rc::gen::arbitrary<bool>()) return op;
      op.checksums.emplace();
      for (std::size_t member = 0; member < op.group.ranks.size(); ++member) {
        op.checksums->sent.push_back(*rc::gen::arbitrary<std::uint64_t>());
        op.checksums->received.push_back(*rc::gen::arbitrary<std::uint64_t>());
      }
      op.checksums->result = *rc::gen::arbitrary<std::uint64_t>();
      return op;
    };
    RankTrace trace;
    trace.rank = rank;
    trace.issued = draw.list<OpRecord>(0, 4, record);
    trace.observed = draw.list<OpRecord>(0, 4, observed_record);
    for (int i = draw.number(0, 3); i > 0; --i) trace.digests[draw.text()] = draw.digest();
    const auto time = [&] {
      TimedOp op{draw.number<StreamId>(0, 5), draw.text(), draw.text(), 0, 0};
      op.begin_ns = draw.number<std::int64_t>(0, kMaxTraceNs - 1);
      op.end_ns = draw.number<std::int64_t>(op.begin_ns, kMaxTraceNs - 1);
      return op;
    };
    trace.issued_times = draw.list<TimedOp>(0, 3, time);
    trace.observed_times = draw.list<TimedOp>(0, 3, time);
    trace.clock_offset_ns = draw.number<std::int64_t>(-kMaxTraceNs, kMaxTraceNs - 1);
    if (*rc::gen::arbitrary<bool>()) trace.environment = any_environment(draw);
    return trace;
  });
}

// Equality leaves out what runs differ in.
bool same(const RankTrace& a, const RankTrace& b) {
  const auto same_checksums = [](const OpRecord& x, const OpRecord& y) { return x.checksums == y.checksums; };
  return a == b && std::ranges::equal(a.observed, b.observed, same_checksums) &&
         a.issued_times == b.issued_times && a.observed_times == b.observed_times &&
         a.clock_offset_ns == b.clock_offset_ns && a.environment == b.environment;
}
bool same(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const RankTrace& x, const RankTrace& y) { return same(x, y); });
}

std::string bytes_of(const std::vector<RankTrace>& traces) {
  std::ostringstream out;
  write_trace(out, traces);
  return out.str();
}

TraceFile read(const std::string& bytes) {
  std::istringstream in(bytes);
  return read_trace(in, "t.cptr");
}

OpRecord all_reduce(std::int64_t sequence) {
  return {.stream = 1,
          .operation = "all_reduce",
          .group = {"dp", {0, 1}},
          .sequence = sequence,
          .dtype = DType::bf16,
          .reduction = ReduceOp::sum,
          .root = -1,
          .sent = {0, 8},
          .received = {0, 8}};
}

std::vector<RankTrace> small_run() {
  OpRecord copy;
  copy.operation = "copy";
  copy.sent = {64};
  Environment environment;
  environment.host = "node1";
  environment.pid = 7;
  environment.backend = "gloo";
  environment.libraries = {{"gloo", "0.5"}, {"zlib", "1.2"}};
  environment.scenario_digest = Digest{3, 4};
  return {{.rank = 1,
           .issued = {copy, all_reduce(0)},
           .observed = {all_reduce(0)},
           .digests = {{"y", {1, 2}}},
           .issued_times = {{0, "copy", "pack", 10, 20}, {1, "all_reduce", "", 20, 90}},
           .observed_times = {{1, "all_reduce", "", 25, 80}},
           .clock_offset_ns = -5,
           .environment = environment},
          {.rank = 0, .issued = {}, .observed = {}, .digests = {}},
          {.rank = 2, .issued = {all_reduce(0), all_reduce(1)}, .observed = {all_reduce(0)}, .digests = {}}};
}

RC_GTEST_PROP(TraceProto, EveryTraceComesBackAsItWas, ()) {
  const RankTrace trace = any_trace(pick("rank", rc::gen::inRange(0, 1 << 20)));
  RC_ASSERT(same(from_proto(to_proto(trace)), trace));
}

RC_GTEST_PROP(TraceProto, FilesComeBackAsTheyWere, ()) {
  std::vector<RankTrace> traces;
  for (int i = pick("traces", rc::gen::inRange(0, 4)); i > 0; --i) traces.push_back(any_trace(10 - i));
  const std::string bytes = bytes_of(traces);
  const TraceFile file = read(bytes);
  RC_ASSERT(same(file.ranks, traces));
  RC_ASSERT(!file.truncation.has_value());
  RC_ASSERT(bytes_of(file.ranks) == bytes);
}

TEST(TraceProto, ListsEachGroupOnce) {
  const proto::RankTrace message = to_proto(small_run()[0]);
  EXPECT_EQ(message.groups_size(), 2);  // that of the copy is empty
  EXPECT_EQ(message.issued(1).group(), message.observed(0).group());
}

TEST(TraceProto, ErrorsNameTheFieldAndItsValue) {
  const struct {
    std::function<void(proto::RankTrace&)> change;
    std::string message;
  } rows[] = {
      {[](auto& t) { t.set_rank(-1); }, "trace.rank is -1"},
      {[](auto& t) { t.mutable_groups(1)->set_ranks(0, -7); }, "trace.groups[1].ranks[0] is -7"},
      {[](auto& t) { t.mutable_issued(1)->set_group(2); },
       "trace.issued[1].group is 2, but there are 2 groups; use 0 to 1"},
      {[](auto& t) { t.mutable_issued(1)->set_stream(-1); }, "trace.issued[1].stream is -1"},
      {[](auto& t) { t.mutable_issued(0)->clear_dtype(); },
       "trace.issued[0].dtype is not set; use one of f32=1"},
      {[](auto& t) { t.mutable_observed(0)->set_dtype(static_cast<proto::DType>(42)); },
       "trace.observed[0].dtype is 42"},
      {[](auto& t) { t.mutable_observed(0)->set_reduction(static_cast<proto::ReduceOp>(42)); },
       "trace.observed[0].reduction is 42"},
      {[](auto& t) { t.mutable_observed(0)->set_sequence(-2); }, "trace.observed[0].sequence is -2"},
      {[](auto& t) { t.mutable_observed(0)->set_root(-2); }, "trace.observed[0].root is -2"},
      {[](auto& t) { t.mutable_observed(0)->set_sent(1, -8); }, "trace.observed[0].sent[1] is -8"},
      {[](auto& t) { t.mutable_observed(0)->set_received(0, -8); }, "trace.observed[0].received[0] is -8"},
      {[](auto& t) { t.mutable_issued_times(0)->set_stream(-1); }, "trace.issued_times[0].stream is -1"},
      {[](auto& t) { t.mutable_issued_times(1)->set_begin_ns(-1); }, "trace.issued_times[1].begin_ns is -1"},
      {[](auto& t) { t.mutable_observed_times(0)->set_duration_ns(-1); },
       "trace.observed_times[0].duration_ns is -1"},
      {[](auto& t) { t.mutable_observed_times(0)->set_duration_ns(kMaxTraceNs); },
       "trace.observed_times[0].duration_ns is 1000000000000000000; use 0 to 999999999999999975"},
      {[](auto& t) { t.set_clock_offset_ns(kMaxTraceNs + 1); },
       "trace.clock_offset_ns is 1000000000000000001"},
      {[](auto& t) { t.mutable_environment()->set_pid(-1); }, "trace.environment.pid is -1"},
      {[](auto& t) { t.mutable_environment()->set_world_size(-1); }, "trace.environment.world_size is -1"},
      {[](auto& t) { t.mutable_environment()->mutable_libraries(1)->set_name("gloo"); },
       "trace.environment.libraries[1] names the library 'gloo' a second time; give each library one "
       "version"},
      {[](auto& t) { *t.add_digests() = t.digests(0); },
       "trace.digests[1] is a second digest of buffer 'y'; give each buffer one"},
  };
  for (const auto& row : rows) {
    proto::RankTrace message = to_proto(small_run()[0]);
    row.change(message);
    EXPECT_THAT(message_of<InvalidInput>([&] { from_proto(message); }), StartsWith(row.message));
  }
}

// What could not be read again is not written.
TEST(TraceProto, TimesAreCheckedWhenTheyAreWritten) {
  RankTrace trace = small_run()[0];
  trace.issued_times[0].end_ns = 9;
  EXPECT_EQ(message_of<InvalidInput>([&] { to_proto(trace); }),
            "trace.times.end_ns is 9; use 10 to 1000000000000000000");
  trace = small_run()[0];
  trace.clock_offset_ns = -kMaxTraceNs - 1;
  EXPECT_THAT(message_of<InvalidInput>([&] { to_proto(trace); }),
              StartsWith("trace.clock_offset_ns is -10000"));
}

TEST(TraceProto, EqualityLeavesOutTimesAndEnvironment) {
  RankTrace trace = small_run()[0];
  trace.issued_times.clear(), trace.observed_times.clear(), trace.clock_offset_ns = 3;
  trace.environment.reset();
  EXPECT_EQ(trace, small_run()[0]);
  EXPECT_EQ(first_difference({trace}, {small_run()[0]}), std::nullopt);
}

TEST(TraceProto, NamesMustBeUtf8) {
  RankTrace trace = small_run()[0];
  trace.issued[0].group.name = "\xff";
  EXPECT_THAT(message_of<InvalidInput>([&] { to_proto(trace); }), StartsWith("group.name is '\\xff'"));
}

// What is there of a file is a prefix of the whole, and a part is never taken for the whole.
TEST(TraceProto, AFileCutAnywhereKeepsItsWholeRecords) {
  const std::vector<RankTrace> run = small_run();
  const std::string bytes = bytes_of(run);
  std::size_t most = 0;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const TraceFile file = read(bytes.substr(0, size));
    ASSERT_TRUE(file.truncation.has_value()) << size;
    ASSERT_LE(file.ranks.size(), run.size());
    EXPECT_TRUE(same(file.ranks, {run.begin(), run.begin() + static_cast<std::ptrdiff_t>(file.ranks.size())}))
        << size;
    EXPECT_GE(file.ranks.size(), most);
    most = file.ranks.size();
  }
  EXPECT_EQ(most, run.size());  // all but the end record
}

TEST(TraceProto, EveryChangedByteIsNoticed) {
  const std::string bytes = bytes_of(small_run());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      EXPECT_THROW(read(changed), BadTrace) << "byte " << at << ", mask " << mask;
    }
  }
}

TEST(TraceProto, LongTracesAreSplitAndJoined) {
  RankTrace trace = small_run()[0];
  for (std::int64_t i = 0; i < 60'000; ++i) {
    OpRecord record = all_reduce(i);
    record.sent[1] = i << 20;
    trace.issued.push_back(record);
    trace.observed.push_back(record);
    trace.issued_times.push_back({1, "all_reduce", "step", i * 100, i * 100 + 50});
  }
  const std::string bytes = bytes_of({trace, small_run()[1]});
  std::istringstream in(bytes);
  RecordReader records(in, "t.cptr");
  std::size_t count = 0, longest = 0;
  while (const auto record = records.next()) ++count, longest = std::max(longest, record->payload.size());
  EXPECT_GT(count, 3U);
  EXPECT_LT(longest, std::size_t{2} << 20);
  EXPECT_TRUE(same(read(bytes).ranks, {trace, small_run()[1]}));

  // Cut in the middle, the operations before the cut are there.
  const TraceFile half = read(bytes.substr(0, bytes.size() / 2));
  ASSERT_EQ(half.ranks.size(), 1U);
  ASSERT_GT(half.ranks[0].issued.size(), 1000U);
  EXPECT_TRUE(std::equal(half.ranks[0].issued.begin(), half.ranks[0].issued.end(), trace.issued.begin()));
  EXPECT_TRUE(half.truncation.has_value());
}

// What a later version adds between the records of this one does not hide them.
TEST(TraceProto, UnknownKindsAreSkipped) {
  std::ostringstream out;
  RecordWriter writer(out);
  writer.write(static_cast<RecordKind>(1000), "what a later version knows");
  writer.write(RecordKind::rank_trace, to_proto(small_run()[0]).SerializeAsString());
  writer.write(static_cast<RecordKind>(1001), "");
  writer.finish();
  const TraceFile file = read(out.str());
  EXPECT_THAT(file.ranks, ElementsAre(small_run()[0]));
  EXPECT_FALSE(file.truncation.has_value());
}

TEST(TraceProto, BadContentsOfARecordAreABadTrace) {
  const auto file_with = [](const std::vector<std::string>& payloads) {
    std::ostringstream out;
    RecordWriter writer(out);
    for (const std::string& payload : payloads) writer.write(RecordKind::rank_trace, payload);
    writer.finish();
    return out.str();
  };
  EXPECT_THAT(message_of<BadTrace>([&] { read(file_with({"\xff\xff"})); }),
              HasSubstr("record at byte 8: the record is not the trace"));
  proto::RankTrace message = to_proto(small_run()[0]);
  const std::string good = message.SerializeAsString();
  message.set_rank(-3);
  EXPECT_THAT(message_of<BadTrace>([&] { read(file_with({message.SerializeAsString()})); }),
              HasSubstr("t.cptr, record at byte 8: trace.rank is -3"));
  EXPECT_THAT(message_of<BadTrace>([&] {
                read(file_with({good, good}));
              }),
              HasSubstr("rank 1 has a second digest of buffer 'y'"));
  message = to_proto(small_run()[0]);
  message.clear_digests();
  message.mutable_environment()->set_host("node2");
  EXPECT_THAT(message_of<BadTrace>([&] {
                read(file_with({good, message.SerializeAsString()}));
              }),
              HasSubstr("rank 1 has a second environment, which differs: host node2, pid 7"));
}

TEST(TraceProto, ARankComesOnceInAFile) {
  std::ostringstream out;
  const std::vector<RankTrace> twice = {small_run()[0], small_run()[0]};
  EXPECT_THAT(message_of<InvalidInput>([&] { write_trace(out, twice); }), HasSubstr("rank 1 has two traces"));
}

// Written before times and environments were there.
TEST(TraceProto, FilesOfEarlierVersionsAreRead) {
  const TraceFile file = read_trace_file("tests/traces/files/without_times.cptrace");
  ASSERT_EQ(file.ranks.size(), 3U);
  EXPECT_FALSE(file.truncation.has_value());
  for (const RankTrace& trace : file.ranks) {
    EXPECT_EQ(trace.observed.size(), 1U);
    EXPECT_TRUE(trace.digests.contains("output"));
    EXPECT_TRUE(trace.issued_times.empty() && trace.observed_times.empty());
    EXPECT_FALSE(trace.environment.has_value());
  }
  EXPECT_EQ(file.ranks[0].issued.size(), 4U);
  EXPECT_EQ(to_string(file.ranks[1].observed[0]),
            "exchange #0 on tp[0,1,2] f32 sent 16/0/8 received 16/0/0 bytes");
  std::ifstream stored("tests/traces/files/without_times.cptrace", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stored)), std::istreambuf_iterator<char>());
  EXPECT_EQ(bytes_of(file.ranks), bytes) << "and written as they were";
}

TEST(TraceProto, FilesAreWrittenAndRead) {
  const std::string path = ::testing::TempDir() + "cp_trace_proto_test.cptr";
  write_trace_file(path, small_run());
  EXPECT_TRUE(same(read_trace_file(path).ranks, small_run()));
  std::remove(path.c_str());
  EXPECT_THAT(message_of<BadTrace>([&] { read_trace_file(path); }), HasSubstr("cannot open " + path));
  EXPECT_THAT(message_of<BadTrace>([&] { read_trace_file(::testing::TempDir()); }),
              HasSubstr("cannot be read"));
  EXPECT_THAT(message_of<BadTrace>([&] { write_trace_file(path + "/no/such", small_run()); }),
              HasSubstr("cannot write"));
}

}  // namespace
}  // namespace cp
