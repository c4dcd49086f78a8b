// Who holds and computes what. Rows J1 to J13 are published cases: torchtitan's tests of context parallelism
// with documents, HyperParallel's load balance, MindSpeed's splits.
#include "shared/context_parallel/sharding.h"

#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/context_parallel/mask_slices.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using Lengths = std::vector<std::int64_t>;

AttentionProblem causal_of_documents(std::int64_t seq_len, std::vector<std::int64_t> cu_seqlens = {}) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = seq_len;
  problem.q_heads = problem.kv_heads = 16;
  problem.causal = true;
  problem.cu_seqlens = std::move(cu_seqlens);
  return problem;
}

Strategy balanced(const char* balance) {
  Strategy strategy;
  strategy.balance = parse_balance(balance);
  return strategy;
}

std::vector<std::int64_t> elements(const IndexSet& rows) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < size(rows); ++i) all.push_back(to_global(rows, i));
  return all;
}

// Per stretch of consecutive queries of one document that a rank computes: how many, and how many keys from
// the document's start (or from where the mask begins) to the last one that they see.
std::pair<Lengths, Lengths> varlen(const AttentionProblem& problem, int cp, const char* balance, int index) {
  const AttentionSharding sharding(problem, cp, balanced(balance));
  std::pair<Lengths, Lengths> lengths;
  for (const MaskSlice& slice :
       mask_slices(problem, sharding.compute_q(index).rows, index_range(0, problem.kv_len))) {
    lengths.first.push_back(slice.q_len);
    lengths.second.push_back(slice.k_len);
  }
  return lengths;
}

TEST(AttentionShardingOracle, J1_HeadTailOfTwoRanks) {
  const AttentionSharding sharding(causal_of_documents(32), 2, balanced("head_tail"));
  EXPECT_EQ(sharding.home_q(0).rows, (IndexSet{{0, 8, 24, 2}}));  // 0..7 and 24..31
  EXPECT_EQ(sharding.home_q(1).rows, index_range(8, 24));
}

TEST(AttentionShardingOracle, J2_OneDocument) {
  EXPECT_EQ(varlen(causal_of_documents(32, {0, 32}), 2, "contiguous", 0),
            std::pair(Lengths{16}, Lengths{16}));
  EXPECT_EQ(varlen(causal_of_documents(32, {0, 32}), 2, "contiguous", 1),
            std::pair(Lengths{16}, Lengths{32}));
}

TEST(AttentionShardingOracle, J3_J9_OneDocumentHeadTail) {
  EXPECT_EQ(varlen(causal_of_documents(32, {0, 32}), 2, "head_tail", 0),
            std::pair(Lengths({8, 8}), Lengths({8, 32})));
  EXPECT_EQ(varlen(causal_of_documents(32, {0, 32}), 2, "head_tail", 1), std::pair(Lengths{16}, Lengths{24}));
}

TEST(AttentionShardingOracle, J4_ThreeDocuments) {
  const AttentionProblem problem = causal_of_documents(64, {0, 10, 50, 64});
  EXPECT_EQ(varlen(problem, 2, "contiguous", 0), std::pair(Lengths({10, 22}), Lengths({10, 22})));
  EXPECT_EQ(varlen(problem, 2, "contiguous", 1), std::pair(Lengths({18, 14}), Lengths({40, 14})));
}

TEST(AttentionShardingOracle, J5_ThreeDocumentsHeadTail) {
  const AttentionProblem problem = causal_of_documents(64, {0, 10, 50, 64});
  EXPECT_EQ(varlen(problem, 2, "head_tail", 0), std::pair(Lengths({10, 6, 2, 14}), Lengths({10, 6, 40, 14})));
  EXPECT_EQ(varlen(problem, 2, "head_tail", 1), std::pair(Lengths{32}, Lengths{38}));
}

TEST(AttentionShardingOracle, J6_AShortDocument) {
  const AttentionProblem problem = causal_of_documents(8, {0, 1, 8});
  EXPECT_EQ(varlen(problem, 2, "contiguous", 0), std::pair(Lengths({1, 3}), Lengths({1, 3})));
  EXPECT_EQ(varlen(problem, 2, "contiguous", 1), std::pair(Lengths{4}, Lengths{7}));
}

TEST(AttentionShardingOracle, J7_FourRanks) {
  const AttentionProblem problem = causal_of_documents(64, {0, 20, 64});
  EXPECT_EQ(varlen(problem, 4, "contiguous", 0), std::pair(Lengths{16}, Lengths{16}));
  EXPECT_EQ(varlen(problem, 4, "contiguous", 1), std::pair(Lengths({4, 12}), Lengths({20, 12})));
  EXPECT_EQ(varlen(problem, 4, "contiguous", 2), std::pair(Lengths{16}, Lengths{28}));
  EXPECT_EQ(varlen(problem, 4, "contiguous", 3), std::pair(Lengths{16}, Lengths{44}));
}

// Both batches have the same documents here: the lengths of one of them, twice.
TEST(AttentionShardingOracle, J8_TwoBatches) {
  const AttentionProblem problem = causal_of_documents(32, {0, 10, 32});
  EXPECT_EQ(varlen(problem, 2, "contiguous", 0), std::pair(Lengths({10, 6}), Lengths({10, 6})));
  EXPECT_EQ(varlen(problem, 2, "contiguous", 1), std::pair(Lengths{16}, Lengths{22}));
}

// Rejected by the system that the case comes from; legal here, and nobody is left without rows.
TEST(AttentionShardingOracle, J10_LengthsThatDoNotDivide) {
  for (const auto& [seq_len, cp, balance] :
       {std::tuple(30, 4, "contiguous"), std::tuple(6, 2, "head_tail")}) {
    EXPECT_FALSE(refuse(causal_of_documents(seq_len), cp, balanced(balance)));
    const AttentionSharding sharding(causal_of_documents(seq_len), cp, balanced(balance));
    for (int index = 0; index < cp; ++index) EXPECT_GT(sharding.home_q(index).num_rows(), 0);
  }
}

// Rank r computes chunks 2r and 2(P-1-r)+1 of 2P: with the diagonal ones counted as halves, the same work for
// all: 2P+1 chunk units of 2 x 2 halves each.
TEST(AttentionShardingOracle, J11_HeadTailExchange) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kChunk = 3;
  const AttentionProblem problem = causal_of_documents(2 * kRanks * kChunk);
  const AttentionSharding sharding(problem, kRanks, balanced("head_tail_exchange"));
  std::set<std::int64_t> work;
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(sharding.home_q(r).rows, index_range(2 * r * kChunk, 2 * (r + 1) * kChunk));
    std::vector<std::int64_t> wanted;
    for (const std::int64_t chunk : {2 * r, 2 * (kRanks - 1 - r) + 1}) {
      for (std::int64_t i = 0; i < kChunk; ++i) wanted.push_back(chunk * kChunk + i);
    }
    EXPECT_THAT(elements(sharding.compute_q(r).rows), ::testing::UnorderedElementsAreArray(wanted));
    std::int64_t cells = 0;
    for (const std::int64_t row : wanted) cells += allowed_cells(problem, row, row + 1);
    work.insert(cells);
  }
  EXPECT_EQ(work.size(), 1U);
}

// The defect to avoid: an odd local length lost its last token.
TEST(AttentionShardingOracle, J11_HeadTailExchangeOfOddLengthsKeepsEveryRow) {
  for (const std::int64_t seq_len : {1, 2, 7, 20, 21, 22, 23, 25}) {
    for (const int cp : {1, 2, 3, 4, 5}) {
      const AttentionSharding sharding(causal_of_documents(seq_len), cp, balanced("head_tail_exchange"));
      std::vector<std::int64_t> all;
      for (int index = 0; index < cp; ++index) {
        for (const std::int64_t row : elements(sharding.compute_q(index).rows)) all.push_back(row);
      }
      std::vector<std::int64_t> wanted(static_cast<std::size_t>(seq_len));
      std::iota(wanted.begin(), wanted.end(), 0);
      EXPECT_THAT(all, ::testing::UnorderedElementsAreArray(wanted)) << seq_len << " over " << cp;
    }
  }
}

TEST(AttentionShardingOracle, J12_RingSplitOfTheReference) {
  const AttentionSharding sharding(causal_of_documents(24), 3, balanced("head_tail"));
  EXPECT_THAT(elements(sharding.home_kv(1).rows), ElementsAre(4, 5, 6, 7, 16, 17, 18, 19));
}

TEST(AttentionShardingOracle, J13_BalancedIsNotChunked) {
  for (const auto& [seq_len, sizes] :
       {std::pair(5, Lengths{2, 1, 1, 1}), std::pair(6, Lengths{2, 2, 1, 1})}) {
    const AttentionSharding sharding(causal_of_documents(seq_len), 4, balanced("contiguous"));
    for (int index = 0; index < 4; ++index) {
      EXPECT_EQ(sharding.home_q(index).num_rows(), sizes[static_cast<std::size_t>(index)]);
    }
  }
}

// The ring splits first, by the balance, then the Ulysses axis what each ring index got (MindSpeed's order).
TEST(AttentionSharding, RingThenUlysses) {
  Strategy strategy = balanced("head_tail");
  strategy.ulysses_degree = 2;
  const AttentionSharding inner(causal_of_documents(16), 4, strategy);
  EXPECT_THAT(elements(inner.home_q(0).rows), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(elements(inner.home_q(1).rows), ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(elements(inner.home_q(2).rows), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(inner.compute_q(1).rows, (IndexSet{{0, 4, 12, 2}}));
  EXPECT_EQ(inner.compute_q(1).head_begin, 8);
  strategy.ulysses_inner = false;
  const AttentionSharding outer(causal_of_documents(16), 4, strategy);
  EXPECT_EQ(outer.home_q(2).rows, inner.home_q(1).rows);
  EXPECT_EQ(outer.ring_index(1), 1);
}

// A rank holds exactly the kv heads that its query heads use.
TEST(AttentionSharding, KvHeadsAreThoseThatTheQueryHeadsUse) {
  AttentionProblem problem = causal_of_documents(16);
  problem.q_heads = 12, problem.kv_heads = 3;
  Strategy strategy;
  strategy.ulysses_degree = 5;
  const AttentionSharding sharding(problem, 5, strategy);
  const std::vector<std::vector<std::int64_t>> expected = {
      {0, 3, 0, 1}, {3, 6, 0, 2}, {6, 8, 1, 2}, {8, 10, 2, 3}, {10, 12, 2, 3}};
  for (int index = 0; index < 5; ++index) {
    const TensorPart q = sharding.compute_q(index), kv = sharding.compute_kv(index);
    EXPECT_EQ((std::vector{q.head_begin, q.head_end, kv.head_begin, kv.head_end}),
              expected[static_cast<std::size_t>(index)]);
  }
}

// Two long documents and many short ones: contiguous ranks differ much, dealt ones by a block at most.
TEST(AttentionSharding, CostBalancesDocuments) {
  std::vector<std::int64_t> ends = {0, 1000, 1500};
  while (ends.back() < 4000) ends.push_back(ends.back() + 50);
  const AttentionProblem problem = causal_of_documents(4000, ends);
  const auto spread = [&](const char* balance) {
    const AttentionSharding sharding(problem, 8, balanced(balance));
    std::int64_t least = std::int64_t{1} << 60, most = 0;
    for (int index = 0; index < 8; ++index) {
      std::int64_t cells = 0;
      for (const std::int64_t row : elements(sharding.home_q(index).rows))
        cells += allowed_cells(problem, row, row + 1);
      least = std::min(least, cells), most = std::max(most, cells);
    }
    return static_cast<double>(most) / static_cast<double>(least);
  };
  EXPECT_GT(spread("contiguous"), 2);
  EXPECT_GT(spread("head_tail"), 2);
  EXPECT_LT(spread("cost:20"), 1.05);
}

RC_GTEST_PROP(AttentionSharding, EveryRowAndHeadIsComputedOnce, ()) {
  const AttentionProblem problem = *any_problem_at_all();
  const int cp = pick("cp", rc::gen::inRange(1, 9));
  const Strategy strategy = *any_strategy(problem, cp);
  const AttentionSharding sharding(problem, cp, strategy);
  std::set<std::pair<std::int64_t, std::int64_t>> at_home, computed;
  std::set<std::int64_t> keys;
  for (int index = 0; index < cp; ++index) {
    RC_ASSERT(sharding.index_at(sharding.ring_index(index), sharding.ulysses_index(index)) == index);
    for (const std::int64_t row : elements(sharding.home_q(index).rows))
      RC_ASSERT(at_home.emplace(row, 0).second);
    for (const std::int64_t row : elements(sharding.home_kv(index).rows)) RC_ASSERT(keys.insert(row).second);
    const TensorPart q = sharding.compute_q(index), kv = sharding.compute_kv(index);
    for (std::int64_t head = q.head_begin; head < q.head_end; ++head) {
      for (const std::int64_t row : elements(q.rows)) RC_ASSERT(computed.emplace(row, head).second);
      RC_ASSERT(kv.head_begin <= head / problem.heads_per_kv() &&
                head / problem.heads_per_kv() < kv.head_end);
    }
  }
  RC_ASSERT(static_cast<std::int64_t>(at_home.size()) == problem.q_len);
  RC_ASSERT(static_cast<std::int64_t>(computed.size()) == problem.q_len * problem.q_heads);
  RC_ASSERT(static_cast<std::int64_t>(keys.size()) == problem.kv_len);
}

// Rows of all batch entries are split alike: at the boundaries of all of them, and by what all of them
// compute together.
TEST(AttentionSharding, EntriesWithDocumentsOfTheirOwnAreSplitAlike) {
  AttentionProblem problem = causal_of_documents(16);
  problem.batch = 2;
  problem.cu_seqlens_of_entry = {{0, 8, 16}, {0, 4, 16}};
  Strategy strategy;
  strategy.balance = parse_balance("per_document:contiguous");
  const auto first_rows = [&] { return elements(AttentionSharding(problem, 2, strategy).home_q(0).rows); };
  EXPECT_THAT(first_rows(), ElementsAre(0, 1, 4, 5, 8, 9, 10, 11));

  problem = causal_of_documents(4);
  problem.batch = 2;
  problem.cu_seqlens_of_entry = {{0, 1, 2, 3, 4},
                                 {0, 4}};  // the second entry alone has more to do for later rows
  strategy.balance = parse_balance("cost:1");
  EXPECT_THAT(first_rows(), UnorderedElementsAre(0, 3));
}

RC_GTEST_PROP(AttentionSharding, HomeLayoutHoldsTheHomeRows, ()) {
  const AttentionProblem problem = *any_problem_at_all();
  const int cp = pick("cp", rc::gen::inRange(1, 9));
  const Strategy strategy = *any_strategy(problem, cp);
  const AttentionSharding sharding(problem, cp, strategy);
  std::vector<Rank> ranks(static_cast<std::size_t>(cp));
  std::iota(ranks.begin(), ranks.end(), 7);
  const Layout layout = home_layout(problem, ranks, strategy, false, problem.v_head_dim);
  const int rows_dim = seq_dim(problem.format);
  for (int index = 0; index < cp; ++index) {
    RC_ASSERT(indices(layout, rows_dim, index + 7) == sharding.home_kv(index).rows);
  }
}

}  // namespace
}  // namespace cp::testing
