#include "shared/plan/trace.h"

#include <functional>

#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp {
namespace {

Plan example() {
  Plan plan;
  plan.self = 5;
  plan.groups = {{"g", {4, 5, 6}}};
  plan.buffers = {{"x", BufferKind::inout, DType::bf16, 90}, {"y", BufferKind::inout, DType::i32, 90}};
  plan.streams = {"compute", "comm"};
  return plan;
}

std::string text(Work work) {
  return to_string(issued_record(example(), Step{1, std::move(work), {}, {}}, 3));
}

TEST(OpRecord, SaysWhatAStepAsksFor) {
  const View a = flat_view(0, 0, 9), b = flat_view(0, 30, 27), c = flat_view(1, 0, 2);
  EXPECT_EQ(text(Collective(AllGather{0, a, b})),
            "all_gather #3 on g[4,5,6] bf16 sent 18/0/18 received 18/0/18 bytes");
  EXPECT_EQ(text(Collective(ReduceScatter{0, ReduceOp::avg, b, a})),
            "reduce_scatter #3 on g[4,5,6] bf16 avg sent 18/0/18 received 18/0/18 bytes");
  EXPECT_EQ(text(Collective(Broadcast{0, 2, View{}, c})),
            "broadcast #3 on g[4,5,6] i32 root 2 sent 0/0/0 received 0/0/8 bytes");
  // The dtype of the first send; else of the first receive; else f32.
  EXPECT_EQ(text(Collective(Exchange{0, {{2, c}, {0, a}}, {{0, a}}, {}})),
            "exchange #3 on g[4,5,6] i32 sent 18/0/8 received 18/0/0 bytes");
  EXPECT_EQ(text(Collective(Exchange{0, {}, {{0, a}}, {}})),
            "exchange #3 on g[4,5,6] bf16 sent 0/0/0 received 18/0/0 bytes");
  EXPECT_EQ(text(Collective(Exchange{0, {}, {}, {}})),
            "exchange #3 on g[4,5,6] f32 sent 0/0/0 received 0/0/0 bytes");
  EXPECT_EQ(text(Kernel(Copy{a, flat_view(0, 9, 9)})), "copy on stream 1, 18 bytes written");
  EXPECT_EQ(text(Kernel(AttentionMerge{a, c, flat_view(0, 9, 9), flat_view(1, 9, 2)})),
            "attention_merge on stream 1, 26 bytes written");
}

OpRecord record(StreamId stream, std::int64_t sequence) {
  OpRecord made;
  made.stream = stream;
  made.operation = "all_reduce";
  made.group = {"g", {0, 1}};
  made.sequence = sequence;
  made.reduction = ReduceOp::sum;
  made.sent = made.received = {0, 64};
  return made;
}

std::vector<RankTrace> traces() {
  const std::vector<OpRecord> records = {record(0, 0), record(1, 0), record(0, 1), record(1, 1)};
  return {{0, records, records, {}}, {1, records, records, {}}};
}

TEST(FirstDifference, EqualTracesHaveNone) { EXPECT_EQ(first_difference(traces(), traces()), std::nullopt); }

TEST(FirstDifference, OrderAcrossStreamsKernelsAndOrderOfRanksDoNotMatter) {
  std::vector<RankTrace> other = traces();
  std::swap(other[0].observed[0], other[0].observed[1]);
  OpRecord kernel;
  kernel.operation = "copy";
  other[1].issued.insert(other[1].issued.begin(), kernel);
  std::swap(other[0], other[1]);
  EXPECT_EQ(first_difference(traces(), other), std::nullopt);
}

TEST(FirstDifference, FindsEachField) {
  const std::vector<std::function<void(OpRecord&)>> changes = {
      [](OpRecord& r) { r.stream = 1; },           [](OpRecord& r) { r.operation = "broadcast"; },
      [](OpRecord& r) { r.group.name = "h"; },     [](OpRecord& r) { r.group.ranks = {1, 0}; },
      [](OpRecord& r) { r.sequence = 7; },         [](OpRecord& r) { r.dtype = DType::f16; },
      [](OpRecord& r) { r.reduction.reset(); },    [](OpRecord& r) { r.root = 0; },
      [](OpRecord& r) { r.sent[1] = 60; },         [](OpRecord& r) { r.received[1] = 60; },
      [](OpRecord& r) { r.received.push_back(0); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    std::vector<RankTrace> other = traces();
    changes[i](other[1].observed[2]);
    EXPECT_TRUE(first_difference(traces(), other)) << i;
    EXPECT_TRUE(first_difference(other, traces())) << i;
    other = traces();
    changes[i](other[1].issued[2]);
    EXPECT_TRUE(first_difference(traces(), other)) << i;
  }
}

TEST(FirstDifference, SaysWhereAndShowsBothSides) {
  const std::string right = "all_reduce #1 on g[0,1] f32 sum sent 0/64 received 0/64 bytes";
  const std::string wrong = "all_reduce #1 on g[0,1] f32 max sent 0/64 received 0/64 bytes";
  std::vector<RankTrace> other = traces();
  other[1].observed[2].reduction = ReduceOp::max;
  EXPECT_EQ(first_difference(traces(), other),
            "rank 1, stream 0, collective 1: b issued " + right + "; b observed " + wrong);
  other[1].issued[2].reduction = ReduceOp::max;
  EXPECT_EQ(first_difference(traces(), other),
            "rank 1, stream 0, collective 1: a observed " + right + "; b observed " + wrong);
  other = traces();
  other[0].observed.pop_back();
  EXPECT_EQ(first_difference(other, traces()),
            "rank 0, stream 1, collective 1: a issued " + right + "; a observed nothing after 1 collectives");
  other = traces();
  other.pop_back();
  EXPECT_EQ(first_difference(traces(), other), "rank 1: b has no trace of it; a has 4 observed collectives");
  EXPECT_EQ(first_difference(other, traces()), "rank 1: a has no trace of it; b has 4 observed collectives");
  other.push_back(other[0]);
  EXPECT_THROW(first_difference(traces(), other), InvalidInput);
}

}  // namespace
}  // namespace cp
