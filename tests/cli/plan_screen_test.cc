// First screens of cpsim plan, whole; CP_UPDATE_GOLDEN=1 writes them anew.
#include "sim/present/plan/plan_screen.h"

#include <algorithm>
#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/cost/cluster/read_cluster.h"
#include "sim/present/plan/next_measurement.h"
#include "sim/present/plan/plan_explain.h"
#include "sim/present/plan/plan_inputs.h"
#include "sim/present/plan/plan_what_if_screen.h"
#include "tests/support/example_answer.h"
#include "tests/support/golden.h"

namespace cp::cli {
namespace {

using ::cp::testing::compare_with_golden;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The example without its hostile texts.
sim::PlanAnswer training_answer() {
  sim::PlanAnswer answer = testing::example_answer();
  answer.question.assumptions = {"phase training", "dtype bf16, as the config stores it",
                                 "gradient_dtype f32", "optimizer adamw"};
  answer.warnings = {"interrupted: the best of what was replayed so far, not of all"};
  answer.next_command =
      "cpsim plan --model llama-3.1-8b --nodes 2 --seq-len 131072 --global-batch 16 --report plan.html";
  answer.run_command = str("cprun train --ranks-as-threads --model llama-3.1-8b --layout ",
                           to_string(answer.best.front().layout));
  return answer;
}

sim::PlanAnswer served_answer(Phase phase) {
  sim::PlanAnswer answer = training_answer();
  answer.run_command.clear();  // nothing trains it
  Workload& workload = answer.question.workload;
  workload.phase = phase;
  workload.global_batch = 4;
  answer.question.assumptions = {"dtype bf16, as the config stores it", "kv_dtype bf16"};
  answer.question.fixed = {};
  answer.warnings.clear();
  // Times of a forward pass; of a token.
  const double scale = phase == Phase::prefill ? 1.0 / 64 : 1.0 / 128000;
  if (phase == Phase::decode) {
    workload.new_tokens = 256;
    workload.cached = workload.seq_len - workload.new_tokens;
    answer.question.max_ttft_ms = 8000;
  }
  const auto shrink = [&](sim::Candidate& candidate) {
    for (double* us : {&candidate.step_us, &candidate.low_us, &candidate.high_us, &candidate.exposed_us})
      *us *= scale;
    for (sim::PartTime& part : candidate.parts) part.us *= scale;
    candidate.tokens_per_s_per_gpu =
        phase == Phase::decode ? 4e6 / candidate.step_us / 16 : 32768e6 / candidate.step_us;
    if (phase == Phase::decode) candidate.ttft_us = 2000 * candidate.step_us;
    Memory& memory = candidate.memory;
    memory.gradients = memory.optimizer = memory.logits = 0;
    memory.activations = 0;
    memory.kv_cache = std::int64_t{3} << 30;
    candidate.layout.recompute = {};
  };
  for (auto* candidates : {&answer.best, &answer.all})
    std::for_each(candidates->begin(), candidates->end(), shrink);
  for (sim::ClassBest& best : answer.classes) {
    if (best.candidate) shrink(*best.candidate);
  }
  return answer;
}

std::size_t num_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// With latent attention it says what travels, where that is a choice.
TEST(PlanScreen, SaysWhetherLatentRowsTravel) {
  sim::PlanAnswer answer = training_answer();
  const auto screen = [&](const char* layout) {
    answer.best.front().layout = parse_parallel_layout(layout);
    return sim::plan_screen(answer);
  };
  EXPECT_THAT(screen("cp=4,strategy=ring"), Not(HasSubstr("\nkeys ")));
  answer.question.model.latent = Latent{1536, 512, 64, 128};
  EXPECT_THAT(
      screen("cp=4,strategy=ring,keys=latent"),
      HasSubstr("\nkeys        latent rows of 576 elements travel between the ranks of a sequence, and "
                "each expands them for its\n"));
  EXPECT_THAT(screen("cp=4,strategy=ring"), HasSubstr("--fix keys=latent asks for the other way"));
  EXPECT_THAT(screen("tp=4"), Not(HasSubstr("\nkeys ")));
}

TEST(PlanScreen, OfTraining) {
  const std::string screen = sim::plan_screen(training_answer());
  EXPECT_EQ(compare_with_golden("plan_screen/training.txt", screen), "");
  EXPECT_LE(num_lines(screen), 47U);
}

TEST(PlanScreen, OfPrefill) {
  EXPECT_EQ(compare_with_golden("plan_screen/prefill.txt", sim::plan_screen(served_answer(Phase::prefill))),
            "");
}

TEST(PlanScreen, OfDecode) {
  EXPECT_EQ(compare_with_golden("plan_screen/decode.txt", sim::plan_screen(served_answer(Phase::decode))),
            "");
}

TEST(PlanScreen, OfTheQuietIsShort) {
  const std::string whole = sim::plan_screen(training_answer()),
                    brief = sim::plan_screen(training_answer(), true);
  EXPECT_EQ(brief.substr(0, brief.find('\n')), whole.substr(0, whole.find('\n')));
  EXPECT_THAT(brief, AllOf(HasSubstr("fastest"), HasSubstr("\nleft        "),
                           HasSubstr("\nwarning     interrupted")));
  EXPECT_THAT(brief, AllOf(Not(HasSubstr("\nmodel ")), Not(HasSubstr("\nsearched ")),
                           Not(HasSubstr("of each class"))));
  EXPECT_LT(brief.size() * 2, whole.size());
}

TEST(PlanScreen, LinesAreShortButForLayoutsAndCommands) {
  for (const auto& [title, text] : sim::plan_inputs(training_answer().question)) {
    EXPECT_THAT(sim::wrapped(text, 80, 4), Not(::testing::ContainsRegex("[^\n]{81}"))) << title;
  }
  EXPECT_EQ(sim::wrapped("one two three", 8, 2), "one two\n  three");
  EXPECT_EQ(sim::wrapped("  one   two", 20, 2), "  one   two");
  EXPECT_EQ(sim::wrapped("muchtoolongaword b", 4, 2), "muchtoolongaword\n  b");
  EXPECT_EQ(sim::wrapped("", 4, 2), "");
}

TEST(PlanScreen, SaysHowTheRatesAreKnown) {
  for (const std::string origin : {"measured", "published", "estimated", "assumed", "borrowed"}) {
    const std::string curve = " { origin: " + origin + " source: \"x\" point { x: 1e6 y: 0.5 } }\n";
    sim::PlanQuestion question = training_answer().question;
    question.cluster = sim::read_cluster(
        "name: \"mine\" like: \"generic\"\nmatmul_efficiency" + curve + "memory_efficiency" + curve,
        "mine.txtpb");
    for (const auto& [title, text] : plan_inputs(question)) {
      if (title != "rates") continue;
      EXPECT_EQ(text, origin == "assumed"
                          ? "attention unknown; products, memory, NVLink assumed"
                          : "attention unknown; products, memory " + origin + "; NVLink assumed");
    }
  }
}

TEST(PlanScreen, SaysHowSureItIs) {
  sim::PlanAnswer answer = training_answer();
  answer.best.front().chance = 0.42, answer.best.front().regret_us = 32100;
  answer.worth_trying = {answer.best[0].layout, answer.best[2].layout};
  answer.worths = {{sim::Rate::network, 10000}, {sim::Rate::products, 0}};
  answer.strategies_worth_us = 20000;
  const std::string screen = sim::plan_screen(answer);
  EXPECT_THAT(screen, HasSubstr("\n 42.0 %     3.21"));
  EXPECT_THAT(screen, HasSubstr("how sure    42.0 % that it is the fastest"));
  EXPECT_THAT(screen, HasSubstr("it takes 32.1 ms"));
  EXPECT_THAT(screen, HasSubstr("trying: cp=16,ring,head_tail\nsettles it"));
  EXPECT_THAT(screen, HasSubstr("settles it  to time attention by each strategy saves 20"));
  answer.strategies_worth_us = 0;
  EXPECT_THAT(sim::plan_screen(answer),
              AllOf(HasSubstr("to measure network saves 10"), HasSubstr("cprun profile")));
  answer.worths.front().us = 100;
  EXPECT_THAT(sim::plan_screen(answer), HasSubstr("settles it  no measurement"));
}

// Nothing was replayed before Ctrl-C.
TEST(PlanScreen, OfNothing) {
  sim::PlanAnswer answer = training_answer();
  answer.best.clear();
  answer.all.clear();
  answer.classes.clear();
  EXPECT_THAT(sim::plan_screen(answer),
              AllOf(::testing::StartsWith("no layout was replayed yet"), HasSubstr("interrupted")));
}

// ---- what is left of the memory ----

TEST(PlanScreen, MemoryThatRunsTookMoreOfIsMarked) {
  sim::PlanAnswer answer = training_answer();
  sim::Candidate& best = answer.best.front();
  EXPECT_EQ(sim::memory_left(best, answer.question.memory_width),
            "15.6 GiB of 78.0; 57.4 to 66.1 GiB needed, as far off as 7 measured runs: likely to fit");
  EXPECT_THAT(sim::plan_screen(answer), Not(HasSubstr("62.4?")));
  best.memory_high_bytes = best.usable_bytes + 1;
  EXPECT_THAT(sim::memory_left(best, answer.question.memory_width), HasSubstr("runs: unlikely to fit"));
  EXPECT_THAT(sim::plan_screen(answer), AllOf(HasSubstr(" 62.4? "), HasSubstr("? unlikely to fit: ")));
}

TEST(PlanScreen, TheNearestMeasurementSaysWhyItDoesNotCount) {
  sim::PlanAnswer answer = training_answer();
  answer.nearest->unscored = "nobody says how";
  EXPECT_THAT(sim::plan_screen(answer),
              HasSubstr("2,042 predicted: +6.7 % in time; not scored, nobody says how"));
  answer.nearest.reset();
  answer.question.workload.phase = Phase::decode;
  EXPECT_THAT(sim::plan_screen(answer),
              HasSubstr("nearest     none: no step of decode was ever compared with a measurement"));
}

// ---- why not another ----

sim::Completion completion_of(const sim::Candidate& candidate) {
  sim::Completion completion;
  completion.kind = sim::Completion::Kind::fits;
  completion.candidate = candidate;
  return completion;
}

TEST(PlanExplanation, ASlowerLayoutStandsBesideTheBest) {
  const sim::PlanAnswer answer = training_answer();
  sim::Completion completion = completion_of(answer.all[12]);
  completion.found = "strategy=ring,balance=head_tail";
  completion.as_written = answer.all[22];
  completion.lost = {"the loss in 4 chunks: logits of all rows exist at once"};
  const sim::LayoutVerdict verdict =
      sim::judge(answer.question, "tp=4,cp=4,recompute=full", completion, answer.best.front());
  EXPECT_EQ(verdict.kind, sim::LayoutVerdict::Kind::slower);
  EXPECT_EQ(compare_with_golden("plan_screen/slower.txt", sim::explanation_text(answer.question, verdict)),
            "");
}

TEST(PlanExplanation, TheChanceAndTheBestItselfSaySo) {
  const sim::PlanAnswer answer = training_answer();
  const auto judged = [&](std::size_t i) {
    return sim::judge(answer.question, "tp=2", completion_of(answer.all[i]), answer.best.front());
  };
  // 2 % slower by another strategy, half of the step attention: the strategies' errors leave it open.
  sim::Candidate close = answer.all[4];
  const double factor = 1.02 * answer.best.front().step_us / close.step_us;
  close.step_us *= factor;
  for (double& us : close.chains.front().of) us *= factor;
  const sim::LayoutVerdict undecided =
      sim::judge(answer.question, "tp=2", completion_of(close), answer.best.front());
  const sim::LayoutVerdict best = judged(0);
  EXPECT_EQ(undecided.kind, sim::LayoutVerdict::Kind::undecided);
  EXPECT_THAT(sim::explanation_text(answer.question, undecided),
              HasSubstr("% sure that this is slower: eight times in ten"));
  EXPECT_EQ(best.kind, sim::LayoutVerdict::Kind::best);
  EXPECT_THAT(sim::explanation_text(answer.question, best), HasSubstr("nothing is faster"));
  sim::Completion tied = completion_of(answer.all[1]);
  tied.candidate->step_us = 1.004 * answer.best.front().step_us;
  const sim::LayoutVerdict tie = sim::judge(answer.question, "tp=2", tied, answer.best.front());
  EXPECT_EQ(tie.kind, sim::LayoutVerdict::Kind::best);
  EXPECT_THAT(sim::explanation_text(answer.question, tie), HasSubstr("as fast as the best, tp=2,cp=8"));
}

TEST(PlanExplanation, WhatIsRejectedOrTooLargeSaysWhatWorks) {
  const sim::PlanAnswer answer = training_answer();
  sim::Completion completion;
  completion.reason = "28 heads", completion.works = "tp=4";
  const sim::LayoutVerdict rejected = sim::judge(answer.question, "tp=8", completion, answer.best.front());
  EXPECT_EQ(rejected.kind, sim::LayoutVerdict::Kind::rejected);
  EXPECT_EQ(sim::explanation_text(answer.question, rejected), "tp=8 is rejected: 28 heads; tp=4 works\n");
  completion = completion_of(answer.all[12]);
  completion.kind = sim::Completion::Kind::too_large;
  completion.candidate->usable_bytes = std::int64_t{30} << 30;
  const sim::LayoutVerdict large = sim::judge(answer.question, "tp=4", completion, answer.best.front());
  EXPECT_EQ(large.kind, sim::LayoutVerdict::Kind::too_large);
  EXPECT_THAT(sim::explanation_text(answer.question, large),
              AllOf(HasSubstr("does not fit: 4.2"), HasSubstr("it would take 4.22 s"),
                    HasSubstr("31.5 % slower than the best"), HasSubstr("\nwhole ")));
}

TEST(PlanComparison, TwoLayoutsStandBesideEachOther) {
  const sim::PlanAnswer answer = training_answer();
  const std::array<sim::LayoutVerdict, 2> both = {
      sim::judge(answer.question, "tp=2", completion_of(answer.all[0]), std::nullopt),
      sim::judge(answer.question, "tp=8,cp=2", completion_of(answer.all[5]), std::nullopt)};
  EXPECT_EQ(compare_with_golden("plan_screen/compare.txt", sim::comparison_text(answer.question, both)), "");
}

// ---- what to measure ----

// The command, from which answer on what is to be done, and what is done with it then.
TEST(PlanExperiments, SayWhatToTypeAndWhatToDoWithTheAnswer) {
  const sim::PlanAnswer answer = training_answer();
  sim::Sensitivity sensitivity;
  sensitivity.layouts = {answer.all[0].layout, answer.all[5].layout};
  sensitivity.step_us = {3.21e6, 3.25e6};
  sensitivity.changes = {{"attention", 0.9, {3.5e6, 3.4e6}, 1},
                         {"network", 1.1, {3.2e6, 3.1e6}, 1, sim::Rate::network}};
  const std::string text = experiments_text(answer, sensitivity, "cpsim plan --cluster mine.txtpb");
  EXPECT_EQ(compare_with_golden("plan_screen/experiments.txt", text), "");
}

// What an answer hangs on most is not always a rate: the obvious thing is to time the strategies themselves.
TEST(PlanExperiments, TheFirstIsWhatSavesMostWithWhatItSettles) {
  sim::PlanAnswer answer = training_answer();
  answer.next_command = "cpsim plan --model x";
  answer.worths = {{sim::Rate::network, 10000}, {sim::Rate::products, 5000}, {sim::Rate::host, 10}};
  answer.strategies_worth_us = 20000;
  answer.worth_trying = {answer.best[0].layout, answer.best[1].layout, answer.best[2].layout};
  const auto all = sim::next_measurements(answer);
  ASSERT_EQ(all.size(), 3U) << "the host's is less than a thousandth of the step";
  EXPECT_FALSE(all[0].rate.has_value());
  EXPECT_EQ(all[1].rate, sim::Rate::network);
  EXPECT_EQ(
      sim::next_measurement_text(answer, "cpsim plan --cluster mine.txtpb"),
      "run first   time attention of one layer by each strategy: to know it before choosing is expected to "
      "save 20 ms\n"
      "            a step (0.6 %)\n"
      "            cpsim plan --model x --explain " +
          to_string(answer.best[0].layout) +
          " --emit attention --output attention1.txtpb\n"
          "            cprun --backend nccl --nproc-per-node 8 attention1.txtpb\n"
          "            cpsim plan --model x --explain " +
          to_string(answer.best[2].layout) +
          " --emit attention --output attention2.txtpb\n"
          "            cprun --backend nccl --nproc-per-node 8 --nnodes 2 --node-rank I --rdzv-endpoint "
          "HOST:PORT --token-file F attention2.txtpb    # I = 0, 1, ... on each node\n"
          "it settles  which strategy's attention is the fastest on these machines; take the layout whose "
          "attention took\n"
          "            least, unless other parts of its step take more than that saves\n"
          "next best   network 10 ms a step (0.3 %), products 5 ms a step (0.2 %)\n");
  answer.strategies_worth_us = 0;
  EXPECT_THAT(sim::next_measurement_text(answer, "cpsim plan --cluster mine.txtpb"),
              AllOf(HasSubstr("run first   measure network: "), HasSubstr(" --node-rank 0 "),
                    HasSubstr(" --node-rank 1 "),
                    HasSubstr("plan with it:\n            cpsim plan --cluster mine.txtpb\n")));
  answer.worths.clear();
  EXPECT_EQ(sim::next_measurement_text(answer, ""), "");
}

}  // namespace
}  // namespace cp::cli
