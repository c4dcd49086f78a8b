// Layers with a window or a recurrence whose rows are at a home of their own: what the search chooses beside
// all that it could, what a move is timed as, and what is fixed.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/transformer/pipeline.h"
#include "sim/cost/frameworks/framework.h"
#include "sim/planner/search/attention_times.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/ranking.h"
#include "sim/planner/search/search.h"
#include "tests/planner/questions.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using cp::testing::message_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ResultOf;
using testing::small_question;

// One layer of four sees all keys, and the others those of a chunk, of a window, or of both. Keys and values
// are 32 times as wide as rows.
PlanQuestion with_layers(const LayerKind& cut) {
  PlanQuestion question = small_question(8, 32768, 1);
  question.model.hidden = 128, question.model.layers = 8;
  question.model.q_heads = question.model.kv_heads = 16, question.model.head_dim = 128;
  const LayerKind full;
  set_layers(question.model, {full, cut, cut, cut, full, cut, cut, cut});
  return question;
}

PlanQuestion with_windows(std::int64_t window) {
  return with_layers({window, {}, false, Mixer::attention, true});
}

// As many rows as each of 8 ranks has: contiguous, it has a chunk for itself; of halves from both ends, it
// has parts of two, and needs the keys that are before one of them.
PlanQuestion with_chunks() { return with_layers({{}, 4096, false, Mixer::attention, true}); }

constexpr auto kAll = [](const ParallelLayout&) { return true; };

double step_us(const PlanQuestion& question, const ParallelLayout& layout) {
  return Evaluator(question).evaluate(layout).step_us;
}

// The least time of the layout with every core and balance of layers with windows.
double least_us(const PlanQuestion& question, ParallelLayout layout) {
  double least = std::numeric_limits<double>::infinity();
  for (const std::optional<Core> core : {std::optional<Core>(), std::optional(Core::need_only)}) {
    for (const char* balance : {"same", "contiguous", "head_tail"}) {
      layout.window_core = core, layout.window_balance = parse_own_balance("window_balance", balance);
      if (refuse(question.model, question.workload, layout)) continue;
      least = std::min(least, step_us(question, layout));
    }
  }
  return least;
}

TEST(OwnBalances, AreChosenWhereTheyTakeLeast) {
  bool own = false, same = false;
  for (const PlanQuestion& question : {with_windows(64), with_windows(8192), with_chunks()}) {
    AttentionTimer timer(question);
    for (const char* strategy : {"strategy=ring,balance=head_tail", "strategy=all_gather,balance=head_tail",
                                 "strategy=all_gather,balance=contiguous"}) {
      const ParallelLayout layout = parse_parallel_layout(std::string("cp=8,") + strategy);
      const std::vector<ParallelLayout> chosen = timer.best_mixers(layout, kAll, true);
      double found_us = std::numeric_limits<double>::infinity();
      bool has_own = false;
      for (const ParallelLayout& way : chosen) {
        const double us = step_us(question, way);
        if (us < found_us) found_us = us, has_own = way.window_balance.has_value();
      }
      EXPECT_LE(found_us, least_us(question, layout) * (1 + kTie)) << to_string(layout);
      (has_own ? own : same) = true;
      // Only plans have the choice, and what does not fit is none.
      EXPECT_THAT(timer.best_mixers(layout, kAll, false), ElementsAre(layout));
      const auto at_one_home = [](const ParallelLayout& of) { return !of.window_balance; };
      EXPECT_THAT(timer.best_mixers(layout, at_one_home, true), Each(ResultOf(at_one_home, true)));
    }
  }
  EXPECT_TRUE(own && same);
}

TEST(OwnBalances, AreFoundByTheSearch) {
  PlanQuestion question = with_chunks();
  question.fixed.cp = 8, question.fixed.strategy = "all_gather", question.fixed.pieces = 1;
  question.fixed.recompute = Recompute{}, question.fixed.loss_chunks = 1;
  double least = std::numeric_limits<double>::infinity();
  SearchOptions exhaustive;
  exhaustive.exhaustive = true;
  for (const char* balance : {"same", "contiguous", "head_tail"}) {
    for (const char* core : {"same", "need_only", "all_gather", "ring", "pass_q"}) {
      PlanQuestion fixed = question;
      fixed.fixed.window_balance = parse_own_balance("window_balance", balance);
      fixed.fixed.window_core = parse_window_core(core);
      for (const Candidate& candidate : search_layouts(fixed, exhaustive).all)
        least = std::min(least, candidate.step_us);
    }
  }
  const Candidate found = search_layouts(question, {}).best.front();
  EXPECT_LE(found.step_us, least * (1 + kTie)) << to_string(found.layout);
  EXPECT_TRUE(found.layout.window_balance) << to_string(found.layout);
}

// Of two ranks each keeps one of its halves and gives the other: a quarter of the rows, each way at once.
TEST(OwnBalances, MovesTakeAsLongAsTheirBytes) {
  const auto moved_ns = [](std::int64_t seq_len) {
    PlanQuestion question = with_windows(64);
    question.workload.seq_len = seq_len;
    const AttentionTimes times = AttentionTimer(question).least(
        parse_parallel_layout("cp=2,dp_shard=4,strategy=ring,balance=head_tail,window_balance=contiguous"));
    const double bytes = static_cast<double>(seq_len) / 4 * 128 * 2;
    for (const double ns : times.move_ns) EXPECT_GT(ns, bytes / question.cluster.node.nvlink_gbps);
    return times.move_ns[0];
  };
  const std::int64_t length = std::int64_t{1} << 24;  // beyond what latencies matter for
  EXPECT_NEAR(moved_ns(2 * length) / moved_ns(length), 2, 0.1);
  EXPECT_EQ(AttentionTimer(with_windows(64)).least(parse_parallel_layout("cp=2,dp_shard=4")).move_ns[0], 0);
}

// The second and third of four stages have the same layers, but behind the third one rows go to another home.
TEST(OwnBalances, OfStagesAreLikeOthersWithTheSameHomes) {
  PlanQuestion question = with_windows(64);
  const LayerKind full, cut{64, {}, false, Mixer::attention, true};
  set_layers(question.model, {full, cut, cut, cut, cut, cut, full, cut});
  const PipelineTimes times = Evaluator(question).schedule(
      parse_parallel_layout("pp=4,cp=2,strategy=ring,balance=head_tail,window_balance=contiguous"));
  std::vector<double> forward_ns(4);
  for (const std::vector<PipelineChunk>& of_rank : times.chunks) {
    for (const PipelineChunk& chunk : of_rank) {
      if (!chunk.backward) forward_ns[idx(chunk.stage)] = chunk.end_ns - chunk.begin_ns;
    }
  }
  EXPECT_GT(forward_ns[1], 0);
  EXPECT_GT(forward_ns[2], forward_ns[1]);
}

// What is fixed stands where the strategy has it and all layers have not; strategies whose rows cannot go to
// that home are left out.
TEST(OwnBalances, ThatAreFixedStandBesideOthers) {
  PlanQuestion question = with_windows(64);
  question.fixed.cp = 8, question.fixed.window_balance = Balance{};
  const LayoutSpace space(question);
  int own = 0, same = 0;
  for (const ParallelLayout& family : space.families()) {
    for (const ParallelLayout& member : space.members(family)) {
      EXPECT_EQ(refuse(question.model, question.workload, member), std::nullopt) << to_string(member);
      const bool whole = member.strategy.ulysses_degree == member.cp;
      EXPECT_EQ(member.window_balance.has_value(),
                !whole && member.strategy.balance.kind == Balance::Kind::head_tail)
          << to_string(member);
      ++(member.window_balance ? own : same);
    }
  }
  EXPECT_TRUE(own > 0 && same > 0);
}

TEST(OwnBalances, AreNoWordOfFrameworks) {
  const PlanQuestion question = with_windows(64);
  for (const Framework framework : {Framework::megatron, Framework::torchtitan}) {
    const ParallelLayout layout =
        parse_parallel_layout("cp=8,strategy=ring,balance=head_tail,window_balance=contiguous");
    const Expressed said = express(framework, {question.model, question.workload, layout, false});
    EXPECT_THAT(
        said.lost,
        ::testing::Contains(HasSubstr("window_balance=contiguous: all layers have their rows at one home")));
    EXPECT_EQ(said.run.layout.window_balance, std::nullopt);
  }
  PlanQuestion asked = question;
  asked.frameworks = {Framework::megatron}, asked.fixed.cp = 8, asked.fixed.strategy = "ring";
  asked.fixed.window_balance = Balance{};
  EXPECT_THAT(message_of([&] { search_layouts(asked, {}); }),
              HasSubstr("window_balance=contiguous: all layers have their rows at one home"));
}

}  // namespace
}  // namespace cp::sim
