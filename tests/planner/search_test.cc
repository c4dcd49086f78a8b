#include "sim/planner/search/search.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/feasible.h"
#include "sim/planner/search/inverse.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/ranking.h"
#include "tests/planner/questions.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::small_question;
using testing::training_question;

PlanAnswer exhaustive(const PlanQuestion& question) {
  SearchOptions options;
  options.exhaustive = true;
  return search_layouts(question, options);
}

std::vector<std::string> best_of(const PlanAnswer& answer) {
  std::vector<std::string> best;
  for (const Candidate& candidate : answer.best)
    best.push_back(str(candidate.layout.tp, " ", to_string(candidate.layout)));
  return best;
}

std::int64_t accounted(const SearchCounts& counts) {
  std::int64_t sum = counts.out_of_memory + counts.pruned + counts.replayed;
  for (const auto& [reason, number] : counts.rejected) sum += number;
  return sum;
}

// The best layouts and the best of each class are those of a search that leaves nothing out.
TEST(Search, FindsWhatAnExhaustiveOneFinds) {
  PlanQuestion question = small_question(8, 65536);
  question.fixed.order = AxisOrder::tp_cp_dp_pp;
#ifdef __SANITIZE_ADDRESS__  // ten times as slow
  question.fixed.recompute = Recompute{Recompute::Kind::every, 2};
  question.fixed.loss_chunks = 4;
  constexpr std::int64_t kLayouts = 500;
#else
  constexpr std::int64_t kLayouts = 5000;
#endif
  const PlanAnswer all = exhaustive(question), found = search_layouts(question);
  EXPECT_GE(all.counts.replayed, kLayouts);
  EXPECT_LT(found.counts.replayed, all.counts.replayed / 2);
  EXPECT_EQ(best_of(found), best_of(all));
  ASSERT_EQ(found.classes.size(), all.classes.size());
  for (std::size_t i = 0; i < all.classes.size(); ++i) {
    ASSERT_EQ(found.classes[i].candidate.has_value(), all.classes[i].candidate.has_value())
        << all.classes[i].name;
    if (!all.classes[i].candidate) continue;
    EXPECT_EQ(found.classes[i].candidate->step_us, all.classes[i].candidate->step_us) << all.classes[i].name;
  }
  EXPECT_EQ(found.counts.enumerated, all.counts.enumerated);
  for (const PlanAnswer* answer : {&all, &found})
    EXPECT_EQ(accounted(answer->counts), answer->counts.enumerated);
  bool pipelined = false, several = false, recomputed = false;
  for (const Candidate& candidate : all.all) {
    EXPECT_GT(candidate.mfu, 0);
    EXPECT_LE(candidate.mfu, 1);
    EXPECT_LE(candidate.low_us, candidate.step_us);
    EXPECT_GE(candidate.high_us, candidate.step_us);
    pipelined |= candidate.layout.pp > 1, several |= candidate.layout.micro_batch > 1;
    recomputed |= candidate.layout.recompute.kind != Recompute::Kind::none;
  }
  EXPECT_TRUE(pipelined && several && recomputed);
}

// Of layouts that tie the freer comes first: what a little slower one needs must not be left out, neither for
// its time nor because fewer chunks of the loss fit, too.
TEST(Search, FindsTheFreerOfTies) {
  PlanQuestion question = small_question(4, 65536);
  question.fixed.pp = 1, question.fixed.micro_batch = 1;
  bool later = false;  // some best one is not the fastest
  for (const double gib : {2.5, 4.0}) {
    question.max_memory_gib = gib;
    std::vector<Candidate> all;
    for (const int chunks : {1, 4, 16}) {
      PlanQuestion with_chunks = question;
      with_chunks.fixed.loss_chunks = chunks;
      try {
        const PlanAnswer answer = exhaustive(with_chunks);
        all.insert(all.end(), answer.all.begin(), answer.all.end());
      } catch (const Infeasible&) {
      }
    }
    rank_candidates(all);
    PlanAnswer expected;
    expected.best = best_of_kinds(all, 8);
    EXPECT_EQ(best_of(search_layouts(question)), best_of(expected)) << gib;
    for (std::size_t i = 1; i < expected.best.size(); ++i)
      later = later || expected.best[i].step_us < expected.best[i - 1].step_us;
  }
  EXPECT_TRUE(later);
}

// The same where many kinds are as fast as the best: what a kind's freer variant takes may be more than the
// slowest of the best takes.
TEST(Search, NoVariantOfTheBestTiesAndIsFreer) {
  for (const auto& [model, nodes, seq_len] :
       {std::tuple{"qwen2.5-7b", 8, 262144}, {"llama-3.1-8b", 2, 131072}, {"llama-3.1-8b", 4, 65536}}) {
    PlanQuestion question = training_question(model, nodes, seq_len, 64);
    question.fixed.order = AxisOrder::tp_cp_dp_pp, question.fixed.micro_batch = 1;
    const PlanAnswer answer = search_layouts(question);
    const LayoutSpace space(question);
    Evaluator evaluator(question);
    std::vector<Candidate> all;
    for (const Candidate& best : answer.best) {
      for (ParallelLayout member : space.members(best.layout)) {
        member.strategy.pieces = best.layout.strategy.pieces;  // chosen for each (overlap_test.cc)
        member.strategy.slots = best.layout.strategy.slots;
        // Of chunks alone the fewest stand for the others that free no more than a step.
        if (!(member.strategy == best.layout.strategy) || member.loss_chunks != best.layout.loss_chunks)
          continue;
        Candidate variant = evaluator.evaluate(member);
        if (variant.fits()) all.push_back(std::move(variant));
      }
    }
    rank_candidates(all);
    PlanAnswer expected;
    expected.best = best_of_kinds(all, answer.best.size());
    EXPECT_EQ(best_of(answer), best_of(expected)) << model << " on " << nodes;
  }
}

TEST(Search, IsTheSameForAnyNumberOfThreads) {
  PlanQuestion question = small_question(8);
  question.fixed.micro_batch = 1;
  SearchOptions one, three;
  one.threads = 1, three.threads = 3;
  const PlanAnswer a = search_layouts(question, one), b = search_layouts(question, three);
  EXPECT_EQ(best_of(a), best_of(b));
  EXPECT_EQ(a.counts.replayed, b.counts.replayed);
  EXPECT_EQ(a.counts.pruned, b.counts.pruned);
}

// What idles needs no search: more GPUs only have to be worth having, which this model's are at that length.
TEST(Search, MoreGpusAreNotSlower) {
  double fewer = 1e300;
  for (const int gpus : {4, 8, 16}) {
    PlanQuestion question = small_question(gpus, 16384);
    question.fixed.micro_batch = 1, question.fixed.recompute = Recompute{};
    const double step_us = search_layouts(question).best.front().step_us;
    EXPECT_LT(step_us, fewer) << gpus;
    fewer = step_us;
  }
}

TEST(Search, WhatIsFixedStaysFixed) {
  PlanQuestion question = small_question(8);
  question.fixed.tp = 2, question.fixed.cp = 2, question.fixed.strategy = "ring";
  question.fixed.recompute = Recompute{Recompute::Kind::full, 1};
  for (const Candidate& candidate : search_layouts(question).all) {
    EXPECT_EQ(candidate.layout.tp, 2);
    EXPECT_EQ(candidate.layout.cp, 2);
    EXPECT_EQ(candidate.layout.strategy.core, Core::ring);
    EXPECT_EQ(candidate.layout.recompute.kind, Recompute::Kind::full);
  }
  question.fixed.tp = 3;
  EXPECT_THAT(testing::message_of([&] { search_layouts(question); }), HasSubstr("do not fit 8 GPUs"));
}

TEST(Search, NothingFitsNamesTheNearestAndWhatWould) {
  PlanQuestion question = training_question("llama-3.1-405b", 1, 131072, 1);
  try {
    search_layouts(question);
    FAIL() << "405B on eight GPUs";
  } catch (const Infeasible& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("layouts fits into the 78 GiB of each of the 8 GPUs of dgx-h100. The nearest is "));
    EXPECT_THAT(error.what(), HasSubstr("; try --nodes "));
    EXPECT_EQ(error.kind(), ErrorKind::infeasible);
  }
}

// What an error tells people to type was tried.
TEST(Search, WhatIsSuggestedWhereNothingFitsDoes) {
  for (const char* model : {"llama-3.1-405b", "llama-3.1-70b"}) {
    PlanQuestion question = training_question(model, 1, 131072, 64);
    std::string error;
    try {
      search_layouts(question);
    } catch (const Infeasible& large) {
      error = large.what();
    }
    const auto number_behind = [&](const std::string& flag) {
      const std::size_t at = error.find(flag + " ");
      return at == std::string::npos ? 0 : std::stoll(error.substr(at + flag.size() + 1));
    };
    PlanQuestion more = question, shorter = question;
    more.cluster.nodes = static_cast<int>(number_behind("--nodes"));
    ASSERT_GT(more.cluster.nodes, 1) << error;
    EXPECT_TRUE(feasible(more)) << error;
    if (const std::int64_t length = number_behind("--seq-len"); length > 0) {
      shorter.workload.seq_len = length;
      EXPECT_TRUE(feasible(shorter)) << error;
    }
    if (error.find("adamw:offload") == std::string::npos) continue;
    question.workload.optimizer.offload = true;
    EXPECT_TRUE(feasible(question)) << error;
  }
}

// What a mixer beside attention does not take is refused by name where it is fixed, and left out else.
TEST(Search, BalancesThatMixersDoNotTakeAreRefused) {
  for (const Mixer mixer : {Mixer::recurrence, Mixer::convolution}) {
    PlanQuestion question = small_question(8);
    std::vector<LayerKind> layers(4);
    layers[1].mixer = layers[2].mixer = mixer;
    set_layers(question.model, layers);
    question.model.recurrence = Recurrence{RecurrenceRule::delta, 8, 8, 64, 32, 4, false};
    question.model.convolution = ShortConvolution{};
    forget_unused_mixers(question.model);
    EXPECT_GT(search_layouts(question).best.size(), 0U);
    for (const char* balance : {"striped", "cost"}) {
      PlanQuestion fixed = question;
      fixed.fixed.cp = 4, fixed.fixed.balance = parse_balance(balance);
      EXPECT_THAT(testing::message_of([&] { search_layouts(fixed); }), HasSubstr(str("balance=", balance)))
          << name(mixer);
    }
  }
}

// One more node would have the memory, and three replicas do not divide its GPUs.
TEST(Search, NodesThatDegreesDoNotDivideAreNotSuggested) {
  PlanQuestion question = small_question(12, 65536, 24);
  question.fixed.dp_replicate = 3;
  const auto fits = [&](int nodes, double gib) {
    PlanQuestion on = question;
    on.cluster.nodes = nodes, on.max_memory_gib = gib;
    return feasible(on).has_value();
  };
  double gib = 16;
  while (fits(3, gib)) gib -= 0.125;
  ASSERT_TRUE(fits(6, gib)) << gib;
  question.max_memory_gib = gib;
  try {
    search_layouts(question);
    FAIL() << gib << " GiB";
  } catch (const Infeasible& error) {
    EXPECT_THAT(error.what(), HasSubstr("; try --nodes 6"));
  }
}

// tp=7 would share the heads, and cannot share the GPUs.
TEST(Search, WhatIsSuggestedForAFixedKeyWorks) {
  PlanQuestion question = training_question("qwen2.5-7b", 8, 65536, 64);
  question.fixed.tp = 8;
  EXPECT_THAT(testing::message_of([&] { search_layouts(question); }),
              ::testing::EndsWith("num_attention_heads=28 is not divisible by tp=8; use tp=4"));
}

TEST(Search, NothingLegalSaysWhy) {
  PlanQuestion question = small_question(8, 4096, 3);
  question.fixed.cp = 1, question.fixed.tp = 1, question.fixed.pp = 1;
  EXPECT_THAT(testing::message_of([&] { search_layouts(question); }), HasSubstr("batch does not divide"));
  question = testing::small_question(8);
  question.model.experts = Experts{4096, 2, 512};
  question.workload.seq_len = 100, question.workload.global_batch = 40;
  EXPECT_THAT(testing::message_of([&] { search_layouts(question); }),
              HasSubstr("a step has 4000 tokens, and each layer 4096 experts, of which some would have none; "
                        "the nearest batch that has as many tokens is --global-batch 41"));
}

TEST(Search, StopsWithWhatItHas) {
  const std::atomic<bool> stop{true};
  SearchOptions options;
  options.stop = &stop;
  const PlanAnswer answer = search_layouts(small_question(8), options);
  EXPECT_TRUE(answer.best.empty());
  ASSERT_FALSE(answer.warnings.empty());
  EXPECT_THAT(answer.warnings.front(), HasSubstr("interrupted"));
  EXPECT_EQ(accounted(answer.counts), answer.counts.enumerated);
}

// Wherever it is stopped, no layout that it has not replayed is faster than it says.
TEST(Search, SaysWhatIsLeftAtLeastWhenItIsStopped) {
  const PlanQuestion question = small_question(8, 65536);
  const double best_us = search_layouts(question).best.front().step_us;
  int with_more_left = 0;
  for (const std::int64_t replayed : {32, 64, 96, 160, 256}) {
    std::atomic<bool> stop{false};
    SearchOptions options;
    options.stop = &stop;
    options.progress = [&](const SearchProgress& progress) { stop = progress.replayed >= replayed; };
    const PlanAnswer answer = search_layouts(question, options);
    ASSERT_FALSE(answer.best.empty());
    if (answer.counts.replayed < replayed) break;  // it came to its end
    EXPECT_GT(answer.least_left_us, 0) << replayed;
    EXPECT_LE(std::min(answer.least_left_us, answer.best.front().step_us), best_us) << replayed;
    EXPECT_THAT(answer.warnings.back(),
                AnyOf(HasSubstr("nothing that is left is faster"), HasSubstr("less than the fastest below")));
    ++with_more_left;
  }
  EXPECT_GE(with_more_left, 2);
}

TEST(Search, TheBaselineIsComparedPartByPart) {
  PlanQuestion question = small_question(8);
  question.fixed.tp = 1, question.fixed.micro_batch = 1;
  question.baseline = PartialLayout{"cp=8,strategy=ring,recompute=full", {}, std::nullopt};
  Fixed& given = question.baseline->given;
  given.cp = 8, given.strategy = "ring", given.recompute = Recompute{Recompute::Kind::full, 1};
  const ClassBest baseline = search_layouts(question).classes.back();
  EXPECT_EQ(baseline.name, "baseline");
  ASSERT_TRUE(baseline.candidate.has_value());
  EXPECT_THAT(baseline.why, HasSubstr(" ms "));
  EXPECT_THAT(baseline.found, HasSubstr("balance="));
  EXPECT_EQ(baseline.candidate->layout.recompute.kind, Recompute::Kind::full);
  question.model.q_heads = 6, question.model.kv_heads = 2;  // on eight ranks
  given = {};
  given.tp = 8;
  EXPECT_THAT(search_layouts(question).classes.back().why, HasSubstr("not divisible by tp=8"));
}

TEST(Search, DecodingKeepsTheLimitOfItsPrompt) {
  PlanQuestion question = training_question("llama-3.1-8b", 1, 32768, 8);
  question.workload.phase = Phase::decode, question.workload.cached = 32767, question.workload.new_tokens = 1;
  const auto all = search_layouts(question);
  question.max_ttft_ms = 1e9;
  const auto limited = search_layouts(question);
  EXPECT_EQ(best_of(limited), best_of(all));
  // What is limited is what is shown, with a limit or without.
  for (std::size_t i = 0; i < all.best.size(); ++i) {
    ASSERT_TRUE(all.best[i].ttft_us.has_value()) << i;
    EXPECT_EQ(all.best[i].ttft_us, limited.best[i].ttft_us) << i;
  }
  for (const ClassBest& of_class : all.classes) {
    EXPECT_TRUE(!of_class.candidate || of_class.candidate->ttft_us) << of_class.name;
  }
  for (const Candidate& candidate : limited.all) EXPECT_TRUE(candidate.ttft_us.has_value());
  question.max_ttft_ms = *all.best.front().ttft_us / 1e3 * (1 - 1e-9);
  const auto stricter = search_layouts(question);
  for (const Candidate& candidate : stricter.all) EXPECT_LE(*candidate.ttft_us, *question.max_ttft_ms * 1e3);
  EXPECT_NE(best_of(stricter), best_of(all));
  question.max_ttft_ms = 1;
  try {
    search_layouts(question);
    FAIL() << "32,767 tokens in a millisecond";
  } catch (const Infeasible& error) {
    EXPECT_THAT(error.what(), HasSubstr("reads the prompt of 32767 tokens in 1 ms; the fastest, "));
    EXPECT_THAT(error.what(), HasSubstr("use --ttft-max "));
  }
}

// The prompt alone, at the same degrees; one of fewer tokens than ranks stays without.
TEST(Search, TheFirstTokenIsTheTimeOfThePrompt) {
  PlanQuestion question = training_question("llama-3.1-8b", 1, 32768, 8);
  question.workload.phase = Phase::decode, question.workload.cached = 32000,
  question.workload.new_tokens = 768;
  const PlanAnswer decode = search_layouts(question);
  const Candidate& best = decode.best.front();
  PlanQuestion prefill = question;
  prefill.workload.phase = Phase::prefill, prefill.workload.seq_len = 32000;
  prefill.workload.cached = prefill.workload.new_tokens = 0;
  EXPECT_EQ(best.ttft_us, Evaluator(prefill).evaluate(best.layout).step_us);
  const auto same = std::find_if(decode.all.begin(), decode.all.end(),
                                 [&](const Candidate& other) { return other.layout == best.layout; });
  ASSERT_NE(same, decode.all.end());
  EXPECT_EQ(same->ttft_us, best.ttft_us);
  EXPECT_FALSE(search_layouts(prefill).best.front().ttft_us) << "it is the step";
  question.fixed.cp = 8, question.workload.cached = 3, question.workload.new_tokens = 32765;
  for (const double limit_ms : {0.0, 1e6}) {
    if (limit_ms > 0) question.max_ttft_ms = limit_ms;
    EXPECT_FALSE(search_layouts(question).best.front().ttft_us) << limit_ms;
  }
}

TEST(Search, ServingRanksByItsOwnTime) {
  PlanQuestion question = training_question("llama-3.1-8b", 1, 32768, 8);
  question.workload.phase = Phase::prefill;
  const PlanAnswer prefill = search_layouts(question);
  EXPECT_EQ(prefill.best.front().layout.recompute.kind, Recompute::Kind::none);
  EXPECT_GT(prefill.best.front().memory.kv_cache, 0);
  EXPECT_EQ(prefill.best.front().memory.gradients, 0);
  question.workload.phase = Phase::decode, question.workload.cached = 32767, question.workload.new_tokens = 1;
  const PlanAnswer decode = search_layouts(question);
  EXPECT_LT(decode.best.front().step_us, prefill.best.front().step_us / 10);
}

// 61 layers cache 576 elements of each token, on all tp ranks alike, and a cp rank its share of the tokens.
TEST(Search, ServesModelsWithLatentAttention) {
  PlanQuestion question = training_question("deepseek-v3", 4, 32768, 32);
  question.workload.phase = Phase::decode, question.workload.cached = 32767, question.workload.new_tokens = 1;
  const PlanAnswer decode = search_layouts(question);
  for (const Candidate& candidate : decode.all) {
    const ParallelLayout& layout = candidate.layout;
    if (layout.pp > 1) continue;
    EXPECT_EQ(candidate.memory.kv_cache,
              std::int64_t{61} * 576 * 2 * (32 / layout.dp()) * (32768 / layout.cp))
        << to_string(layout);
    EXPECT_EQ(layout.keys, Strategy::Keys::heads);
  }
  // Weights and cache are read once at least.
  const Candidate& best = decode.best.front();
  EXPECT_GT(best.step_us * 1e-6 * question.cluster.gpu.hbm_gbps * 1e9,
            static_cast<double>(best.memory.kv_cache) + static_cast<double>(best.memory.parameters) / 2);
  ASSERT_TRUE(best.ttft_us);
  EXPECT_GT(*best.ttft_us, best.step_us);
}

// 24 layers with Mamba-2 cache 128 heads x 128 x 64 in f32 of each request and 3 rows of 10,240 in bf16,
// whatever the length; 4 layers with attention 2 x 1,024 elements of each token.
TEST(Search, ServesModelsWithRecurrentLayers) {
  const auto decode = [](std::int64_t length) {
    PlanQuestion question = training_question("nemotron-h-8b", 1, length, 16);
    question.workload.phase = Phase::decode, question.workload.cached = length - 1,
    question.workload.new_tokens = 1;
    return std::pair(question, search_layouts(question));
  };
  const auto [question, answer] = decode(32768);
  constexpr std::int64_t kStates = std::int64_t{24} * 128 * 128 * 64 * 4,
                         kRows = std::int64_t{24} * 3 * 10240 * 2;
  for (const Candidate& candidate : answer.all) {
    const ParallelLayout& layout = candidate.layout;
    if (layout.pp > 1 || layout.tp > 8) continue;
    const std::int64_t spread = layout.scan == StateScan::heads ? layout.cp : 1;
    EXPECT_EQ(candidate.memory.kv_cache,
              16 / layout.dp() *
                  ((kStates / spread + kRows) / layout.tp +
                   std::int64_t{4} * 2 * 1024 * 2 / layout.tp * (32768 / layout.cp)))
        << to_string(layout);
  }
  const Candidate& best = answer.best.front();
  EXPECT_GT(best.step_us * 1e-6 * question.cluster.gpu.hbm_gbps * 1e9,
            static_cast<double>(best.memory.kv_cache) + static_cast<double>(best.memory.parameters) / 2);
  ASSERT_TRUE(best.ttft_us);
  EXPECT_GT(*best.ttft_us, best.step_us);
  // Four times as long, attention alone reads more.
  const Candidate longer = decode(131072).second.best.front();
  EXPECT_GT(longer.step_us, best.step_us);
  EXPECT_LT(longer.step_us, 2 * best.step_us);
}

}  // namespace
}  // namespace cp::sim
