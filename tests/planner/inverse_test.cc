#include "sim/planner/search/inverse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/transformer/memory_reading.h"
#include "sim/planner/search/feasible.h"
#include "tests/planner/questions.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_question;
using testing::training_question;

// Few layouts, and so little memory that lengths of some thousand tokens fill it.
PlanQuestion tight_question(int gpus, std::int64_t seq_len, double gib) {
  PlanQuestion question = small_question(gpus, seq_len);
  question.fixed.order = AxisOrder::tp_cp_dp_pp;
  question.fixed.recompute = Recompute{Recompute::Kind::full, 1};
  question.fixed.loss_chunks = 4;
  question.max_memory_gib = gib;
  return question;
}

TEST(ParseLengths, TakesRangesThatDoubleAndLists) {
  EXPECT_THAT(parse_lengths("32K..128K"), ElementsAre(32768, 65536, 131072));
  EXPECT_THAT(parse_lengths("1M..1M"), ElementsAre(1048576));
  EXPECT_THAT(parse_lengths("32K..100K"), ElementsAre(32768, 65536, 102400));
  EXPECT_THAT(parse_lengths(" 8K, 12k,1000 "), ElementsAre(8192, 12288, 1000));
}

TEST(ParseLengths, BadOnesShowBothForms) {
  for (const char* text : {"", "K", "8K,,12K", "many", "32K..", "..1M", "8K..16K..32K", "1.5K", "8T",
                           "9000000000000000K", "1..9000000000000M"}) {
    EXPECT_THAT(message_of([&] { parse_lengths(text); }), AllOf(HasSubstr("32K..1M"), HasSubstr("8K,12K")))
        << text;
  }
  EXPECT_THAT(message_of([] { parse_lengths("1M..32K"); }), HasSubstr("ends before it begins"));
  for (const char* text : {"0", "-8K", "9223372036854775807", "1..9000000000K"})
    EXPECT_THAT(message_of([&] { parse_lengths(text); }), HasSubstr("is out of range")) << text;
}

// The order is the asker's: the first one is what others are compared with.
TEST(ParseNumbers, KeepTheirOrderAndSayWhatTheyAre) {
  EXPECT_THAT(parse_numbers("4,1,2,4", "number of nodes"), ElementsAre(4, 1, 2));
  EXPECT_THAT(parse_numbers("1..6", "number of nodes"), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(message_of([] { parse_numbers("0", "number of nodes"); }),
              AllOf(HasSubstr("the number of nodes 0 is out of range"), HasSubstr("1..8")));
}

TEST(Sweep, AnswersEachLengthAsASearchOfItsOwn) {
  PlanQuestion question = tight_question(4, 4096, 3);
  std::vector<PlanQuestion> questions;
  for (const std::int64_t length : {4096, 8192, 1 << 20}) questions.push_back(at_seq_len(question, length));
  std::vector<std::int64_t> begun;
  const auto points =
      sweep(questions, {}, [&](const PlanQuestion& next) { begun.push_back(next.workload.seq_len); });
  EXPECT_THAT(begun, ElementsAre(4096, 8192, 1 << 20));
  ASSERT_EQ(points.size(), 3U);
  for (const std::size_t i : {0U, 1U}) {
    ASSERT_TRUE(points[i].best.has_value());
    EXPECT_EQ(points[i].best->step_us, search_layouts(questions[i]).best.front().step_us);
  }
  EXPECT_FALSE(points[2].best.has_value());
  EXPECT_FALSE(points[2].refused);
  EXPECT_THAT(points[2].why, HasSubstr("layouts fits into the 3 GiB of each"));
}

TEST(Sweep, WhatIsWrongAtEveryLengthIsAnError) {
  PlanQuestion question = small_question(4);
  question.fixed.tp = 3;
  EXPECT_THAT(message_of([&] {
                sweep({question, at_seq_len(question, 8192)});
              }),
              HasSubstr("do not fit 4 GPUs"));
  // Two tokens over four ranks: at another length it is legal.
  question.fixed.tp = 4;
  const auto points = sweep({at_seq_len(question, 2), at_seq_len(question, 4096)});
  EXPECT_THAT(points.at(0).why, HasSubstr("sequence too short"));
  EXPECT_TRUE(points.at(0).refused);
  EXPECT_TRUE(points.at(1).best.has_value());
}

TEST(Sweep, StopsWithThePointsThatAreWhole) {
  std::atomic<bool> stop{false};
  SearchOptions options;
  options.stop = &stop;
  const PlanQuestion question = tight_question(4, 4096, 3);
  const auto points = sweep({question, at_seq_len(question, 8192)}, options,
                            [&](const PlanQuestion& next) { stop = next.workload.seq_len > 4096; });
  ASSERT_EQ(points.size(), 1U);
  EXPECT_TRUE(points[0].best.has_value());
}

TEST(Feasible, IsLegalAndFits) {
  PlanQuestion question = tight_question(8, 16384, 2);
  const auto layout = feasible(question);
  ASSERT_TRUE(layout.has_value());
  EXPECT_FALSE(refuse(question.model, question.workload, *layout));
  const Memory memory = memory_of({question.model, question.workload, *layout}, memory_rules(question));
  EXPECT_LE(memory.used() - memory.context, usable_bytes(question));
  question.max_memory_gib = 0.05;
  EXPECT_FALSE(feasible(question).has_value());
}

// Where ranks are is no matter of memory, so that one order of axes stands for all.
TEST(Feasible, MemoryIsTheSameInAnyOrderOfAxes) {
  PlanQuestion question = small_question(16, 4096, 16);
  const MemoryRules rules = memory_rules(question);
  int pairs = 0;
  for (const char* text : {"tp=2,cp=2,dp_shard=2,pp=2,strategy=ring,balance=head_tail",
                           "tp=2,cp=4,dp_shard=2,strategy=all_gather,balance=contiguous",
                           "cp=2,dp_shard=2,dp_replicate=2,pp=2,virtual_stages=2,strategy=ulysses",
                           "tp=2,cp=2,dp_shard=4,ep=4,strategy=ring,balance=head_tail"}) {
    question.model.experts.reset();
    if (std::string_view(text).find("ep=") != std::string_view::npos)
      question.model.experts = Experts{8, 2, 96};
    const auto memory_in = [&](AxisOrder order) {
      ParallelLayout layout = parse_parallel_layout(text);
      layout.order = order;
      return terms(memory_of({question.model, question.workload, layout}, rules));
    };
    for (const AxisOrder order : axis_orders()) {
      EXPECT_EQ(memory_in(order), memory_in(AxisOrder::tp_cp_dp_pp)) << text << " " << to_string(order);
      ++pairs;
    }
  }
  EXPECT_GE(pairs, 9);
}

// Of states of 64 heads, all_gather brings a rank those of all chunks before its own, and sequential one.
TEST(Feasible, TakesTheScanThatNeedsLeast) {
  PlanQuestion question = tight_question(8, 4096, 8);
  question.fixed.tp = question.fixed.pp = 1, question.fixed.cp = 8;
  question.model.recurrence = Recurrence{RecurrenceRule::delta, 64, 64, 128, 128, 4, false};
  std::vector<LayerKind> layers(static_cast<std::size_t>(question.model.layers));
  layers.back().mixer = Mixer::recurrence;
  set_layers(question.model, layers);
  const auto least_gib = [&](StateScan scan) {
    PlanQuestion of_scan = question;
    of_scan.fixed.scan = scan;
    double too_little = 0, enough = 8;
    for (int i = 0; i < 16; ++i) {
      of_scan.max_memory_gib = (too_little + enough) / 2;
      (feasible(of_scan) ? enough : too_little) = *of_scan.max_memory_gib;
    }
    return enough;
  };
  const double sequential = least_gib(StateScan::sequential), all_gather = least_gib(StateScan::all_gather);
  ASSERT_LT(sequential, 0.99 * all_gather);
  question.max_memory_gib = (sequential + all_gather) / 2;
  const auto layout = feasible(question);
  ASSERT_TRUE(layout.has_value());
  EXPECT_NE(name(layout->scan), "all_gather");
}

// With no plan to look at nothing is found, and with one what fits at once; by one thread and by three.
TEST(Feasible, GivesUpBehindAsManyPlans) {
  const PlanQuestion question = tight_question(8, 16384, 2);
  for (const int threads : {1, 3}) {
    EXPECT_FALSE(feasible(question, {threads, 0}).has_value());
    ASSERT_TRUE(feasible(question, {threads, 1}).has_value());
    EXPECT_EQ(*feasible(question, {threads, 1}), *feasible(question, {threads}));
  }
}

TEST(LongestSeqLen, OneGrainMoreDoesNotFit) {
  for (const double gib : {2.0, 5.0}) {
    const PlanQuestion question = tight_question(4, 1024, gib);
    const std::int64_t grain = seq_len_grain(question);
    EXPECT_EQ(grain, 1024);
    const auto longest = longest_seq_len(question, grain);
    ASSERT_TRUE(longest.has_value());
    EXPECT_GT(*longest, 2048);
    EXPECT_EQ(*longest % grain, 0);
    EXPECT_TRUE(feasible(at_seq_len(question, *longest)).has_value());
    EXPECT_FALSE(feasible(at_seq_len(question, *longest + grain)).has_value());
    EXPECT_THROW(search_layouts(at_seq_len(question, *longest + grain)), Infeasible);
    // From wherever it begins, and up to wherever it may go.
    EXPECT_EQ(longest_seq_len(at_seq_len(question, *longest), grain), longest);
    EXPECT_EQ(longest_seq_len(question, grain, *longest), longest);
    EXPECT_EQ(longest_seq_len(question, grain, *longest - 1), *longest - grain);
    EXPECT_EQ(longest_seq_len(at_seq_len(question, *longest + grain), grain), std::nullopt);
  }
}

TEST(LongestSeqLen, GrowsTheCacheInDecode) {
  PlanQuestion question = training_question("llama-3.1-8b", 1, 4096, 8);
  question.fixed.tp = 8;
  question.workload.phase = Phase::decode;
  question.workload.new_tokens = 96, question.workload.cached = 4000;
  const auto longest = longest_seq_len(question, 1024);
  ASSERT_TRUE(longest.has_value());
  const PlanQuestion at = at_seq_len(question, *longest);
  EXPECT_EQ(at.workload.cached + 96, *longest);
  // 8 requests of 32 layers with one of 8 kv heads on each rank: 16 KiB a token and request.
  EXPECT_LE(*longest * 8 * 16384, usable_bytes(question));
  EXPECT_FALSE(feasible(at_seq_len(question, *longest + 1024)).has_value());
}

TEST(LongestSeqLen, SaysWhatItTriesAndStops) {
  const PlanQuestion question = tight_question(4, 1024, 2);
  std::vector<std::int64_t> tried;
  std::atomic<bool> stop{false};
  InverseOptions options;
  options.stop = &stop;
  options.trying = [&](std::int64_t length) { tried.push_back(length), stop = tried.size() == 3; };
  EXPECT_EQ(longest_seq_len(question, 1024, 1 << 26, options), std::nullopt);
  EXPECT_THAT(tried, ElementsAre(1024, 2048, 4096));
}

TEST(FewestGpus, FewerDoNotFit) {
  PlanQuestion question = training_question("llama-3.1-70b", 8, 8192, 64);
  question.fixed.order = AxisOrder::tp_cp_dp_pp;
  const auto fewest = fewest_gpus(question).gpus;
  ASSERT_TRUE(fewest.has_value());
  // 70 G parameters with 16 bytes each are 1,052 GiB: of 624 GiB a node, two.
  EXPECT_GE(*fewest, 16);
  EXPECT_LE(*fewest, 64);
  EXPECT_TRUE(feasible(at_gpus(question, *fewest)).has_value());
  for (const int gpus : gpu_counts(question)) {
    if (gpus == *fewest) break;
    EXPECT_FALSE(feasible(at_gpus(question, gpus)).has_value()) << gpus;
  }
  question.cluster.nodes = *fewest / 8 - 1;
  EXPECT_EQ(fewest_gpus(question).gpus, std::nullopt);
}

TEST(FewestGpus, CountsArePartsOfANodeAndWholeOnes) {
  EXPECT_THAT(gpu_counts(training_question("llama-3.1-8b", 3, 8192, 8)), ElementsAre(1, 2, 4, 8, 16, 24));
  const PlanQuestion part = at_gpus(training_question("llama-3.1-8b", 3, 8192, 8), 2);
  EXPECT_EQ(part.cluster.num_gpus(), 2);
  EXPECT_TRUE(part.part_of_a_node);
  EXPECT_EQ(at_gpus(training_question("llama-3.1-8b", 3, 8192, 8), 16).cluster.nodes, 2);
}

TEST(FewestGpus, OneIsEnoughForASmallModel) { EXPECT_EQ(fewest_gpus(small_question(16)).gpus, 1); }

// Three ranks of a degree need nodes in threes.
TEST(FewestGpus, CountsThatDegreesDoNotDivideAreLeftOut) {
  PlanQuestion question = small_question(16, 4096, 24);
  question.fixed.dp_replicate = 3;
  EXPECT_EQ(fewest_gpus(question).gpus, 12);
}

// What fits on few GPUs may read its prompt too slowly there, and not on more.
TEST(FewestGpus, ThePromptIsReadInTime) {
  PlanQuestion question = training_question("llama-3.1-8b", 4, 131072, 2);
  question.workload.phase = Phase::decode;
  question.workload.cached = 131071, question.workload.new_tokens = 1;
  const auto fewest = fewest_gpus(question).gpus;
  ASSERT_TRUE(fewest.has_value());
  const auto prompt_ms = [&](int gpus) {
    PlanQuestion strict = at_gpus(question, gpus);
    strict.max_ttft_ms = 1;
    std::string error;
    try {
      search_layouts(strict);
    } catch (const Infeasible& slow) {
      error = slow.what();
    }
    return std::stod(error.substr(error.find("use --ttft-max ") + 15));
  };
  const double least = prompt_ms(*fewest), more = prompt_ms(4 * *fewest);
  ASSERT_LT(more, least);
  question.max_ttft_ms = (least + more) / 2;
  const FewestGpus found = fewest_gpus(question);
  ASSERT_TRUE(found.gpus.has_value());
  EXPECT_GT(*found.gpus, *fewest);
  EXPECT_THAT(found.too_slow, ::testing::Contains(*fewest));
  EXPECT_NO_THROW(search_layouts(at_gpus(question, *found.gpus)));
  question.max_ttft_ms = 1;
  EXPECT_EQ(fewest_gpus(question).gpus, std::nullopt);
}

// Each count up to the one that is found is too slow by a search of its own.
TEST(FewestGpus, AStepIsWithinItsLimit) {
  const PlanQuestion question = small_question(32, 16384, 32);
  const auto best_us = [&](int gpus) { return search_layouts(at_gpus(question, gpus)).best.front().step_us; };
  const double most_us = 1.2 * best_us(8);
  SearchOptions search;
  search.most_us = most_us;
  const FewestGpus found = fewest_gpus(question, search);
  ASSERT_TRUE(found.gpus.has_value());
  EXPECT_LE(*found.gpus, 8);
  EXPECT_GT(*found.gpus, 1);
  const PlanAnswer within = search_layouts(at_gpus(question, *found.gpus), search);
  ASSERT_FALSE(within.best.empty());
  for (const Candidate& candidate : within.all) EXPECT_LE(candidate.step_us, most_us);
  for (const int gpus : gpu_counts(question)) {
    if (gpus >= *found.gpus) break;
    // The first of the order may be a tie of the fastest.
    for (const Candidate& candidate : search_layouts(at_gpus(question, gpus)).all)
      EXPECT_GT(candidate.step_us, most_us) << gpus;
  }
  search.most_us = 1;
  EXPECT_EQ(fewest_gpus(question, search).gpus, std::nullopt);
}

TEST(SearchWithin, LeavesOutWhatIsSlowerAndNothingElse) {
  const PlanQuestion question = small_question(8);
  const PlanAnswer whole = search_layouts(question);
  SearchOptions options;
  options.most_us = whole.best.front().step_us * 1.1;
  const PlanAnswer within = search_layouts(question, options);
  ASSERT_FALSE(within.best.empty());
  EXPECT_EQ(to_string(within.best.front().layout), to_string(whole.best.front().layout));
  for (const Candidate& candidate : within.all) EXPECT_LE(candidate.step_us, options.most_us);
  options.most_us = 1;
  EXPECT_TRUE(search_layouts(question, options).best.empty());
  // What does not fit is still an error.
  PlanQuestion tight = question;
  tight.max_memory_gib = 0.01;
  EXPECT_THROW(search_layouts(tight, options), Infeasible);
}

TEST(MostUsOf, IsTheStepOfSoManyTokensASecond) {
  const PlanQuestion question = small_question(8);
  const Candidate best = search_layouts(question).best.front();
  EXPECT_NEAR(most_us_of(question, 8 * best.tokens_per_s_per_gpu), best.step_us, 1e-9 * best.step_us);
  PlanQuestion decode = question;
  decode.workload.phase = Phase::decode, decode.workload.global_batch = 16;
  EXPECT_DOUBLE_EQ(most_us_of(decode, 1000), 16000);
}

}  // namespace
}  // namespace cp::sim
