// Names, texts and legality.
#include "shared/context_parallel/strategy.h"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

AttentionProblem small_problem() {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64;
  problem.q_heads = 8, problem.kv_heads = 2;
  return problem;
}

// Whatever two problems differ in, plans of one must not be taken for plans of the other.
TEST(Problem, EveryFieldCountsInItsDigest) {
  std::vector<AttentionProblem> problems = {small_problem()};
  const auto with = [&](auto&& change) {
    problems.push_back(small_problem());
    change(problems.back());
  };
  with([](AttentionProblem& p) { p.batch = 2; });
  with([](AttentionProblem& p) { p.q_len = 63; });
  with([](AttentionProblem& p) { p.kv_len = 63; });
  with([](AttentionProblem& p) { p.q_heads = 4; });
  with([](AttentionProblem& p) { p.kv_heads = 4; });
  with([](AttentionProblem& p) { p.head_dim = 32; });
  with([](AttentionProblem& p) { p.v_head_dim = 32; });
  with([](AttentionProblem& p) { p.dtype = DType::bf16; });
  with([](AttentionProblem& p) { p.format = TensorFormat::sbhd; });
  with([](AttentionProblem& p) { p.softmax_scale = 0.5; });
  with([](AttentionProblem& p) { p.causal = true; });
  with([](AttentionProblem& p) { p.window = 5; });
  with([](AttentionProblem& p) { p.cu_seqlens = {0, 64}; });
  with([](AttentionProblem& p) { p.cu_seqlens = {0, 32}; });
  with([](AttentionProblem& p) { p.cu_seqlens_of_entry = {{0, 64}}; });
  with([](AttentionProblem& p) { p.query_offset = 1; });
  std::set<std::string> digests;
  for (const AttentionProblem& problem : problems) {
    Hasher hasher;
    digests.insert(to_string(hash(hasher, problem).digest()));
  }
  EXPECT_EQ(digests.size(), problems.size());
}

TEST(Strategy, BalancesComeBackFromTheirText) {
  for (const char* text : {"contiguous", "head_tail", "striped:16", "cost:64", "head_tail_exchange",
                           "per_document:head_tail", "per_document:striped:2"}) {
    EXPECT_EQ(to_string(parse_balance(text)), text);
  }
  EXPECT_EQ(to_string(parse_balance("none")), "contiguous");
  EXPECT_EQ(parse_balance("striped").block, 1);
  EXPECT_EQ(parse_balance("cost").block, 64);
}

TEST(Strategy, BalanceErrorsQuoteTheTextAndListWhatIsKnown) {
  const auto message = [](const char* text) { return message_of([&] { parse_balance(text); }); };
  EXPECT_THAT(message("snake"),
              AllOf(HasSubstr("'snake'"), HasSubstr("known: contiguous (or none), head_tail")));
  EXPECT_THAT(message("striped:0"), HasSubstr("a block of 0 is below 1"));
  EXPECT_THAT(message("head_tail:3"), HasSubstr("'head_tail' has no block"));
  EXPECT_THAT(message("per_document:cost"), HasSubstr("cannot act within a document"));
}

TEST(Strategy, NamesStandForWhatSystemsCallThem) {
  const AttentionProblem problem = small_problem();
  EXPECT_EQ(named_strategy({"ulysses", {}, {}}, problem, 8).ulysses_degree, 8);
  EXPECT_EQ(named_strategy({"ulysses_ring", {}, {}}, problem, 8).ulysses_degree, 2);
  EXPECT_EQ(named_strategy({"ulysses_ring", {}, {}}, problem, 16).ulysses_degree, 4);
  EXPECT_EQ(named_strategy({"ulysses_ring", 8, {}}, problem, 16).ulysses_degree, 8);
  EXPECT_EQ(named_strategy({"double_ring", {}, {}}, problem, 16).inner_ring, 4);
  EXPECT_EQ(named_strategy({"pass_q", {}, {}}, problem, 16).core, Core::pass_q);
  EXPECT_THAT(message_of([&] {
                named_strategy({"ulyses", {}, {}}, problem, 8);
              }),
              HasSubstr("did you mean ulysses?"));
}

// What can be chosen beside the name: the degree of hybrids, the inner rings of a ring of rings.
TEST(Strategy, NamesSayWhatIsToBeChosen) {
  const AttentionProblem problem = small_problem();
  for (const std::string& name : strategy_names()) {
    const Strategy strategy = named_strategy({name, {}, {}}, problem, 4);
    EXPECT_EQ(is_hybrid(name), strategy.ulysses_degree == 2) << name;
    EXPECT_EQ(has_inner_rings(name), strategy.inner_ring == 2) << name;
  }
  EXPECT_TRUE(is_hybrid("ulysses_ring"));
  EXPECT_TRUE(has_inner_rings("double_ring"));
  EXPECT_FALSE(is_hybrid("ulysses") || is_hybrid("ulysses_rings") || has_inner_rings("ring"));
}

TEST(Strategy, EveryNameIsLegalOnSmallGroups) {
  const AttentionProblem problem = small_problem();
  for (const std::string& name : strategy_names()) {
    for (const int cp : {1, 2, 3, 4, 5, 6, 7, 8}) {
      EXPECT_FALSE(refuse(problem, cp, named_strategy({name, {}, {}}, problem, cp))) << name << " on " << cp;
    }
  }
}

void expect_refused(const AttentionProblem& problem, int cp, const Strategy& strategy, const char* words) {
  const auto refusal = refuse(problem, cp, strategy);
  ASSERT_TRUE(refusal) << words;
  EXPECT_THAT(refusal->reason, HasSubstr(words));
  EXPECT_FALSE(refuse(refusal->problem, cp, refusal->strategy)) << "the alternative is refused too";
}

TEST(Legality, RefusalsNameTheValuesTheReasonAndWhatWorks) {
  AttentionProblem problem = small_problem();
  Strategy strategy;
  strategy.ulysses_degree = 16;
  expect_refused(
      problem, 16, strategy,
      "ulysses_degree=16 is more than q_heads=8, and each rank needs a head; use 8, of {1, 2, 4, 8}");
  strategy.ulysses_degree = 3;
  expect_refused(problem, 8, strategy, "ulysses_degree=3 does not divide cp=8; use 2, of {1, 2, 4, 8}");
  strategy.ulysses_degree = 2, strategy.inner_ring = 3;
  expect_refused(problem, 8, strategy,
                 "inner_ring=3 does not divide the ring of 4 ranks; use 2, of {1, 2, 4}");
  strategy = {};
  problem.dtype = DType::i32;
  expect_refused(problem, 8, strategy, "dtype=i32 has no attention kernel; use f32, bf16 or f16");
}

// What kernels of other systems take is named as it was asked for, with the reason and what to do instead.
TEST(Legality, OptionsThatNoKernelHasAreRefusedByName) {
  std::set<std::string_view> names, reasons;
  for (const KernelOptionInfo& option : kernel_options()) {
    EXPECT_EQ(&info(option.option), &option) << option.name;
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_FALSE(option.reason.empty() || option.instead.empty()) << option.name;
    AttentionProblem problem = small_problem();
    problem.options[option.option] = "7";
    expect_refused(problem, 8, {}, str(option.name, "=7: ", option.reason, "; ", option.instead).c_str());
    problem.options[option.option] = "";
    expect_refused(problem, 8, {}, str(option.name, ": ").c_str());
  }
  EXPECT_EQ(static_cast<std::size_t>(KernelOption::skip_lse) + 1, kernel_options().size());
}

TEST(Legality, SeveralReasonsAreNamedTogether) {
  AttentionProblem problem = small_problem();
  problem.options[KernelOption::bias] = "0.5", problem.options[KernelOption::prefix] = "30";
  Strategy strategy;
  strategy.ulysses_degree = 5;
  expect_refused(problem, 8, strategy, "bias=0.5");
  expect_refused(problem, 8, strategy, "prefix=30");
  expect_refused(problem, 8, strategy, "ulysses_degree=5");
}

TEST(Strategy, ReadsZigzagAsHeadTail) {
  EXPECT_EQ(to_string(parse_balance("zigzag")), "head_tail");
  EXPECT_EQ(to_string(parse_balance("per_document:zigzag")), "per_document:head_tail");
}

// Lengths, documents, windows, kv heads and balances are never a reason.
TEST(Legality, NothingElseIsRefused) {
  for (const std::int64_t seq_len : {0, 1, 3, 7, 1021}) {
    for (const std::int64_t kv_heads : {1, 2, 4, 8}) {
      AttentionProblem problem = small_problem();
      problem.q_len = seq_len, problem.kv_len = 1021, problem.kv_heads = kv_heads;
      problem.causal = true, problem.window = 5;
      problem.cu_seqlens = {0, 1, 1, 500};
      for (const char* balance : {"contiguous", "head_tail", "striped:7", "cost:9", "head_tail_exchange",
                                  "per_document:head_tail"}) {
        for (Strategy strategy : standard_strategies(problem, 8)) {
          strategy.balance = parse_balance(balance);
          EXPECT_FALSE(refuse(problem, 8, strategy)) << to_string(strategy);
        }
      }
    }
  }
}

TEST(Problem, NonsenseIsInvalidInput) {
  const auto message = [](const auto& change) {
    AttentionProblem problem = small_problem();
    change(problem);
    return message_of([&] { validate_problem(problem); });
  };
  EXPECT_THAT(message([](auto& p) { p.kv_heads = 3; }),
              HasSubstr("q_heads=8 is not a multiple of kv_heads=3; each kv head serves equally many query "
                        "heads: use kv_heads=2"));
  EXPECT_THAT(message([](auto& p) { p.batch = 0; }), HasSubstr("batch=0; use at least 1"));
  EXPECT_THAT(message([](auto& p) { p.window = 0; }), HasSubstr("window=0"));
  EXPECT_THAT(message([](auto& p) { p.cu_seqlens = {1, 64}; }), HasSubstr("begin with 1; begin with 0"));
  EXPECT_THAT(message([](auto& p) { p.cu_seqlens = {0, 40, 30}; }), HasSubstr("descend from 40 to 30"));
  EXPECT_THAT(message([](auto& p) { p.cu_seqlens = {0, 65}; }), HasSubstr("end at 65, beyond kv_len=64"));
  EXPECT_EQ(message([](auto& p) { p.cu_seqlens = {0, 10, 10, 50}; }), "no error");
  EXPECT_EQ(message([](auto& p) {
              p.batch = 2;
              p.cu_seqlens_of_entry = {{0, 10, 50}, {0, 64}};
            }),
            "no error");
  EXPECT_THAT(
      message([](auto& p) {
        p.batch = 3;
        p.cu_seqlens_of_entry = {{0, 10, 50}, {0, 64}};
      }),
      HasSubstr("documents are given for 2 batch entries (0/10/50;0/64), but batch=3; give one list for all "
                "entries, or 3 lists"));
  EXPECT_THAT(message([](auto& p) {
                p.batch = 2;
                p.cu_seqlens_of_entry = {{0, 10, 50}, {0, 65}};
              }),
              HasSubstr("end at 65, beyond kv_len=64"));
  EXPECT_THAT(message([](auto& p) {
                p.batch = 2;
                p.cu_seqlens_of_entry = {{0, 10}, {}};
              }),
              HasSubstr("batch entry 1 has no documents, but others have some; use 0/64"));
  EXPECT_THAT(message([](auto& p) {
                p.cu_seqlens = {0, 8};
                p.cu_seqlens_of_entry = {{0, 10}};
              }),
              HasSubstr("give only one of the two"));
}

TEST(Problem, DocumentsAreText) {
  AttentionProblem problem;
  for (const std::string text : {"", "0/10/50", "0/10/50;0/20/20/64"}) {
    parse_documents(text, problem);
    EXPECT_EQ(documents_text(problem), text);
  }
  EXPECT_EQ(problem.cu_seqlens_of_entry,
            (std::vector<std::vector<std::int64_t>>{{0, 10, 50}, {0, 20, 20, 64}}));
  EXPECT_THAT(message_of([&] { parse_documents("0/10;x", problem); }), HasSubstr("end of a document"));
}

TEST(Problem, FormatsAreText) {
  for (const TensorFormat format : {TensorFormat::bshd, TensorFormat::bnsd, TensorFormat::sbhd})
    EXPECT_EQ(parse_tensor_format(name(format)), format);
  EXPECT_EQ(seq_dim(TensorFormat::bshd), 1);
  EXPECT_EQ(seq_dim(TensorFormat::bnsd), 2);
  EXPECT_EQ(seq_dim(TensorFormat::sbhd), 0);
  EXPECT_THAT(message_of([] { parse_tensor_format("thd"); }), HasSubstr("use bshd, bnsd or sbhd"));
}

}  // namespace
}  // namespace cp::testing
