#include "sim/planner/search/layout_timeline.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/planner/search/evaluate.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using Lane = std::pair<int, std::string>;  // rank, stream

// In order of their beginnings, and one after another on each stream. All times of a timeline are rounded
// alike, so nothing is allowed for.
std::map<Lane, double> ends_of_lanes(const std::vector<ReportSpan>& spans) {
  EXPECT_TRUE(std::is_sorted(spans.begin(), spans.end(), [](const ReportSpan& a, const ReportSpan& b) {
    return a.begin_us < b.begin_us;
  }));
  std::map<Lane, double> ends;
  for (const ReportSpan& span : spans) {
    EXPECT_LE(span.begin_us, span.end_us) << span.label;
    double& end = ends[{span.rank, span.stream}];
    EXPECT_GE(span.begin_us, end) << span.label << " on " << span.stream;
    end = span.end_us;
  }
  return ends;
}

double last_end(const std::map<Lane, double>& ends) {
  double last = 0;
  for (const auto& [lane, end] : ends) last = std::max(last, end);
  return last;
}

std::set<std::string> streams_of(const std::vector<ReportSpan>& spans) {
  std::set<std::string> streams;
  for (const ReportSpan& span : spans) streams.insert(span.stream);
  return streams;
}

std::set<SpanKind> kinds_of(const std::vector<ReportSpan>& spans) {
  std::set<SpanKind> kinds;
  for (const ReportSpan& span : spans) kinds.insert(span.kind);
  return kinds;
}

// Sums of at most a few thousand times, in another order: each addition rounds by 2^-53 of the step.
constexpr double kRounding = 1e-11;

// Every axis has its stream and its kind, and with one micro-batch the timeline is the step.
TEST(LayoutTimeline, OfATrainingStepIsAsLongAsTheStep) {
  PlanQuestion question = testing::small_question(8, 4096, 1);
  const ParallelLayout layout = parse_parallel_layout("tp=2,cp=4,strategy=ring,balance=head_tail");
  const std::vector<ReportSpan> spans = layout_timeline(question, layout);
  const double step = Evaluator(question).evaluate(layout).step_us;
  EXPECT_NEAR(last_end(ends_of_lanes(spans)), step, kRounding * step);
  for (const char* stream : {"compute", "tp", "fsdp", "fsdp_reduce"}) {
    EXPECT_TRUE(streams_of(spans).contains(stream)) << stream;
  }
  EXPECT_EQ(kinds_of(spans), (std::set<SpanKind>{SpanKind::attention, SpanKind::product, SpanKind::kernel,
                                                 SpanKind::tp, SpanKind::cp, SpanKind::fsdp}));
  for (const ReportSpan& span : spans) EXPECT_EQ(span.rank, 0);
}

// One micro-batch and the update, whatever the accumulation.
TEST(LayoutTimeline, OfATrainingStepHasOneMicroBatch) {
  const ParallelLayout layout = parse_parallel_layout("tp=2,cp=4,strategy=ring,balance=head_tail");
  const std::vector<ReportSpan> one = layout_timeline(testing::small_question(8, 4096, 1), layout),
                                four = layout_timeline(testing::small_question(8, 4096, 4), layout);
  ASSERT_EQ(one.size(), four.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].label, four[i].label);
    EXPECT_EQ(one[i].begin_us, four[i].begin_us);
    EXPECT_EQ(one[i].end_us, four[i].end_us);
  }
}

// Layers of a Repeat are told apart.
TEST(LayoutTimeline, EachLayersAttentionIsThere) {
  const PlanQuestion question = testing::small_question(4, 2048, 4);
  const std::vector<ReportSpan> spans = layout_timeline(question, parse_parallel_layout("dp_shard=4"));
  // Forward and backward of four layers.
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(),
                          [](const auto& span) { return span.kind == SpanKind::attention; }),
            2 * question.model.layers);
}

TEST(LayoutTimeline, OfServingIsAsLongAsTheStep) {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    PlanQuestion question = testing::small_question(8, 4096, 1);
    question.workload.phase = phase;
    if (phase == Phase::decode) question.workload.cached = 4095, question.workload.new_tokens = 1;
    for (const char* text : {"tp=4,cp=2,strategy=ring", "tp=4,pp=2", "cp=4,pp=2,strategy=pass_q"}) {
      const ParallelLayout layout = parse_parallel_layout(text);
      const std::vector<ReportSpan> spans = layout_timeline(question, layout);
      const double end = last_end(ends_of_lanes(spans));
      const double step = Evaluator(question).evaluate(layout).step_us;
      std::set<int> stages;
      for (const ReportSpan& span : spans) stages.insert(span.rank);
      EXPECT_EQ(stages.size(), static_cast<std::size_t>(layout.pp)) << text;
      EXPECT_NEAR(end, step, kRounding * step) << text << " " << name(phase);
    }
  }
}

// Every rank of the pipeline runs both passes of each of its stages for each micro-batch, in an order that
// data allows.
TEST(LayoutTimeline, OfStagesIsTheirSchedule) {
  const PlanQuestion question = testing::small_question(4, 2048, 8);
  for (const char* text : {"pp=4", "pp=2,dp_shard=2", "pp=2,tp=2,virtual_stages=2"}) {
    const ParallelLayout layout = parse_parallel_layout(text);
    const std::vector<ReportSpan> spans = layout_timeline(question, layout);
    const int stages = layout.pp * layout.virtual_stages;
    const std::int64_t micro_batches = accumulation(question.workload, layout);
    EXPECT_EQ(spans.size(), static_cast<std::size_t>(2 * stages * micro_batches)) << text;
    EXPECT_EQ(streams_of(spans), std::set<std::string>{"schedule"});
    const auto ends = ends_of_lanes(spans);
    EXPECT_EQ(ends.size(), static_cast<std::size_t>(layout.pp)) << text;
    EXPECT_LE(last_end(ends), Evaluator(question).evaluate(layout).step_us) << text;

    std::map<std::pair<SpanKind, std::string>, const ReportSpan*> passes;  // by kind and label
    for (const ReportSpan& span : spans) {
      EXPECT_TRUE(passes.emplace(std::pair(span.kind, span.label), &span).second) << span.label;
    }
    const auto pass = [&](SpanKind kind, int stage, std::int64_t micro_batch) -> const ReportSpan& {
      return *passes.at({kind, str("stage ", stage, ", micro-batch ", micro_batch)});
    };
    for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      for (int stage = 0; stage < stages; ++stage) {
        const ReportSpan &forward = pass(SpanKind::forward, stage, micro_batch),
                         &backward = pass(SpanKind::backward, stage, micro_batch);
        EXPECT_EQ(forward.rank, stage % layout.pp);
        EXPECT_EQ(backward.rank, stage % layout.pp);
        EXPECT_GE(backward.begin_us, forward.end_us);
        if (stage == 0) continue;
        EXPECT_GE(forward.begin_us, pass(SpanKind::forward, stage - 1, micro_batch).end_us);
        EXPECT_GE(pass(SpanKind::backward, stage - 1, micro_batch).begin_us, backward.end_us);
      }
    }
  }
}

// Of too many, the longest: none that is left out is longer than one that is kept.
TEST(LayoutTimeline, KeepsTheLongestOnes) {
  const PlanQuestion question = testing::small_question(4, 2048, 4);
  const ParallelLayout layout = parse_parallel_layout("dp_shard=4");
  const auto durations = [&](std::size_t most) {
    std::vector<double> all;
    const std::vector<ReportSpan> spans = layout_timeline(question, layout, most);
    ends_of_lanes(spans);
    for (const ReportSpan& span : spans) all.push_back(span.end_us - span.begin_us);
    std::sort(all.begin(), all.end(), std::greater<>());
    return all;
  };
  std::vector<double> all = durations(20000);
  ASSERT_GT(all.size(), 10U);
  all.resize(10);
  EXPECT_EQ(durations(10), all);
}

}  // namespace
}  // namespace cp::sim
