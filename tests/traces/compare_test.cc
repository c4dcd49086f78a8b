#include "traces/compare.h"

#include <functional>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "tests/support/any_case.h"
#include "tests/traces/small_traces.h"

namespace cp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::sample_traces;

using Change = std::function<void(OpRecord&)>;

// Each argument of a call, changed between the step and the call.
const std::vector<std::pair<std::string, Change>>& corruptions() {
  static const std::vector<std::pair<std::string, Change>> all = {
      {"operation: all_reduce, all_gather", [](OpRecord& r) { r.operation = "all_gather"; }},
      {"group: world[0,1,2], other[0,1,2]", [](OpRecord& r) { r.group.name = "other"; }},
      {"group: world[0,1,2], world[1,0,2]",
       [](OpRecord& r) { std::swap(r.group.ranks[0], r.group.ranks[1]); }},
      {"sequence: 1, 5", [](OpRecord& r) { r.sequence = 5; }},
      {"dtype: f32, bf16", [](OpRecord& r) { r.dtype = DType::bf16; }},
      {"reduction: sum, max", [](OpRecord& r) { r.reduction = ReduceOp::max; }},
      {"reduction: sum, none", [](OpRecord& r) { r.reduction.reset(); }},
      {"root: -1, 0", [](OpRecord& r) { r.root = 0; }},
      {"sent bytes[2]: 64, 68", [](OpRecord& r) { r.sent[2] += 4; }},
      {"received bytes[0]: 64, 60", [](OpRecord& r) { r.received[0] -= 4; }},
      {"received bytes of 3, 2 peers", [](OpRecord& r) { r.received.pop_back(); }}};
  return all;
}

TEST(CompareTraces, OfOneRunAreIdentical) {
  const TraceComparison result = compare_traces(sample_traces(3), sample_traces(3, 5000));
  EXPECT_TRUE(result.identical);
  EXPECT_EQ(result.num_ranks, 3U);
  EXPECT_EQ(result.num_operations, 12);
  EXPECT_THAT(result.divergences, IsEmpty());
}

TEST(CompareTraces, EveryCorruptedArgumentIsFound) {
  for (const auto& [field, change] : corruptions()) {
    SCOPED_TRACE(field);
    std::vector<RankTrace> corrupted = sample_traces(3);
    change(corrupted[1].observed[1]);
    const TraceComparison result = compare_traces(sample_traces(3), corrupted);
    EXPECT_FALSE(result.identical);
    ASSERT_EQ(result.divergences.size(), 1U);
    const RankDivergence& found = result.divergences[0];
    EXPECT_EQ(found.rank, 1);
    EXPECT_EQ(found.stream, 1);
    EXPECT_EQ(found.at, 1U);
    EXPECT_EQ(found.one.side, "B issued");
    EXPECT_EQ(found.other.side, "B observed");
    EXPECT_THAT(found.fields, ElementsAre(field));
    EXPECT_EQ(compare_traces(corrupted, sample_traces(3)).divergences.at(0).other.side, "A observed");
    // Where the step itself was changed, both agree on one side, and the sides differ.
    change(corrupted[1].issued[2]);
    const TraceComparison both = compare_traces(sample_traces(3), corrupted);
    ASSERT_EQ(both.divergences.size(), 1U);
    EXPECT_EQ(both.divergences[0].one.side, "A observed");
    EXPECT_EQ(both.divergences[0].other.side, "B observed");
  }
}

TEST(CompareTraces, ACallOnAnotherStreamIsFound) {
  std::vector<RankTrace> corrupted = sample_traces(3);
  corrupted[1].observed[1].stream = 2;
  EXPECT_FALSE(compare_traces(sample_traces(3), corrupted).identical);
}

RC_GTEST_PROP(CompareTraces, AnyChangeOfAnyRecordIsFound, ()) {
  const Rank ranks = pick("ranks", rc::gen::inRange(3, 6));
  const std::vector<RankTrace> run = sample_traces(ranks);
  std::vector<RankTrace> changed = run;
  RankTrace& rank = changed[pick("changed rank", rc::gen::inRange<std::size_t>(0, run.size()))];
  std::vector<OpRecord>& section = pick("section", rc::gen::arbitrary<bool>()) ? rank.issued : rank.observed;
  OpRecord& record = section[pick("changed record", rc::gen::inRange<std::size_t>(0, section.size()))];
  const OpRecord before = record;
  if (pick("whether a record takes its place", rc::gen::arbitrary<bool>())) {
    record = section[pick("record in its place", rc::gen::inRange<std::size_t>(0, section.size()))];
  } else {
    record.sent[pick("peer", rc::gen::inRange<std::size_t>(0, record.sent.size()))] +=
        pick("bytes more", rc::gen::element<std::int64_t>(-1, 1, 1024));
  }
  RC_PRE(record != before);
  const TraceComparison result = compare_traces(run, changed);
  RC_ASSERT(!result.identical);
  RC_ASSERT(result.divergences.size() == 1U);
  RC_ASSERT(result.divergences[0].rank == rank.rank);
}

TEST(CompareTraces, TheNeighbourhoodIsTwoOperationsOnEachSide) {
  std::vector<RankTrace> a = sample_traces(3);
  for (std::int64_t i = 3; i < 9; ++i) {
    OpRecord more = a[0].observed[0];
    more.sequence = i;
    a[0].issued.push_back(more), a[0].observed.push_back(more);
  }
  std::vector<RankTrace> b = a;
  b[0].observed[5].dtype = b[0].issued[6].dtype = DType::f16;
  const auto sequences = [](const Neighbourhood& side) {
    std::vector<std::int64_t> numbers;
    for (const OpRecord& record : side.operations) numbers.push_back(record.sequence);
    return numbers;
  };
  RankDivergence found = compare_traces(a, b).divergences.at(0);
  EXPECT_EQ(found.at, 5U);
  EXPECT_EQ(found.one.first, 3U);
  EXPECT_EQ(found.one.total, 9U);
  EXPECT_THAT(sequences(found.one), ElementsAre(3, 4, 5, 6, 7));
  EXPECT_THAT(sequences(found.other), ElementsAre(3, 4, 5, 6, 7));
  // An operation that is missing at the end.
  b = a;
  b[0].observed.pop_back(), b[0].issued.pop_back();
  found = compare_traces(a, b).divergences.at(0);
  EXPECT_EQ(found.at, 8U);
  EXPECT_THAT(sequences(found.one), ElementsAre(6, 7, 8));
  EXPECT_THAT(sequences(found.other), ElementsAre(6, 7));
  EXPECT_THAT(found.fields, IsEmpty());
}

TEST(CompareTraces, KernelsAreComparedToo) {
  std::vector<RankTrace> b = sample_traces(3);
  b[2].issued[0].sent = {128};
  const RankDivergence found = compare_traces(sample_traces(3), b).divergences.at(0);
  EXPECT_EQ(found.one.side, "A issued");
  EXPECT_FALSE(found.among_collectives);
  EXPECT_THAT(found.fields, ElementsAre("sent bytes[0]: 64, 128"));
}

TEST(CompareTraces, DigestsAreCompared) {
  std::vector<RankTrace> b = sample_traces(3);
  b[1].digests["out"].low = 8;
  b[2].digests["more"] = {5, 5};
  b[0].digests.clear();
  const TraceComparison result = compare_traces(sample_traces(3), b);
  EXPECT_FALSE(result.identical);
  EXPECT_THAT(result.divergences, IsEmpty());
  ASSERT_EQ(result.digests.size(), 3U);
  EXPECT_EQ(result.digests[0].b, std::nullopt);
  EXPECT_EQ(result.digests[1].b, (Digest{1, 8}));
  EXPECT_EQ(result.digests[2].buffer, "more");
  EXPECT_EQ(result.digests[2].a, std::nullopt);
}

TEST(CompareTraces, RanksOfOneSideAreNamed) {
  std::vector<RankTrace> a = sample_traces(3), b = a;
  a.pop_back(), b.erase(b.begin());
  const TraceComparison result = compare_traces(a, b);
  EXPECT_FALSE(result.identical);
  EXPECT_THAT(result.only_in_a, ElementsAre(0));
  EXPECT_THAT(result.only_in_b, ElementsAre(2));
  EXPECT_EQ(result.num_ranks, 1U);
  EXPECT_FALSE(compare_traces(sample_traces(3), a).identical) << "what one side alone has is enough";
  EXPECT_FALSE(compare_traces(a, sample_traces(3)).identical);
  b.push_back(b[0]);
  EXPECT_THROW(compare_traces(a, b), InvalidInput);
}

// What a cut left out is no difference; what is there still is.
TEST(CompareTraces, OfACutTraceWhatIsThereIsCompared) {
  std::vector<RankTrace> whole = sample_traces(3), cut = whole;
  cut.pop_back();
  cut[1].issued.pop_back();
  cut[1].observed.resize(1);
  cut[1].digests.clear();
  EXPECT_FALSE(compare_traces(whole, cut).identical);
  EXPECT_TRUE(compare_traces(whole, cut, {.b_is_cut = true}).identical);
  EXPECT_TRUE(compare_traces(cut, whole, {.a_is_cut = true}).identical);
  EXPECT_FALSE(compare_traces(whole, cut, {.a_is_cut = true}).identical);
  cut[1].observed[0].dtype = DType::f32;
  EXPECT_FALSE(compare_traces(whole, cut, {.b_is_cut = true}).identical);
}

TEST(CompareTraces, TimesStandSideBySide) {
  const TraceComparison result = compare_traces(sample_traces(3, 1000), sample_traces(3, 3000));
  ASSERT_EQ(result.times.size(), 4U);
  for (const OperationTime& row : result.times) {
    EXPECT_EQ(row.count_a, 3) << row.operation;
    EXPECT_EQ(row.count_b, 3) << row.operation;
    EXPECT_EQ(row.ns_a, 3 * 1000.0) << row.operation;
    EXPECT_EQ(row.ns_b, 3 * 3000.0) << row.operation;
  }
  EXPECT_EQ(result.whole.count_a, 12);
  EXPECT_EQ(result.whole.ns_a, 4 * 1000.0 + 2 * 50) << "rank 2 starts 100 ns after rank 0";
  EXPECT_EQ(result.whole.ns_b, 4 * 3000.0 + 2 * 50);
}

TEST(CompareTraces, WithoutTimesOfStepsThoseOfTheCallsCount) {
  std::vector<RankTrace> a = sample_traces(3), none = sample_traces(3);
  for (RankTrace& trace : a) trace.issued_times.clear();
  for (RankTrace& trace : none) trace.issued_times.clear(), trace.observed_times.clear();
  const TraceComparison result = compare_traces(a, none);
  EXPECT_TRUE(result.identical);
  ASSERT_EQ(result.times.size(), 3U);
  EXPECT_EQ(result.times[0].ns_a, 3 * 800.0);
  EXPECT_EQ(result.times[0].count_b, 0);
  EXPECT_EQ(result.whole.count_b, 0);
  EXPECT_EQ(result.whole.ns_b, 0);
}

}  // namespace
}  // namespace cp
