// How masks are cut into fused calls: the forms by hand, and all masks against the definition pair by pair.
#include "shared/context_parallel/attention_calls.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/context_parallel/mask_slices.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

using detail::AttentionCall;
using Kind = MaskSlice::Kind;

// Everything, without figures of a GPU.
FusedAttention library() {
  return {.dtypes = {DType::bf16},
          .head_dim_multiple = 8,
          .max_head_dim_forward = 128,
          .max_head_dim_backward = 128,
          .window = true,
          .window_tail = true,
          .packed = true,
          .sm_count = 100};
}
FusedShape shape(std::int64_t batch = 1) {
  FusedShape of;
  of.batch = batch, of.q_heads = of.kv_heads = 2, of.head_dim = of.v_head_dim = 64;
  return of;
}

// "fused 0+4/0+8 causal+4" for each call: its rows, its keys, and the slices if they are not one full one.
std::string text(const std::vector<AttentionCall>& calls) {
  std::string all;
  for (const AttentionCall& call : calls) {
    all += str(all.empty() ? "" : ", ", call.engine == AttentionEngine::fused ? "fused " : "exact ",
               call.q.begin, "+", call.q.len, "/", call.k.begin, "+", call.k.len);
    if (call.slices.size() > 1) all += str(" of ", call.slices.size());
    const MaskSlice& first = call.slices.front();
    if (first.kind == Kind::causal) all += str(" causal+", first.diagonal);
    if (first.kind == Kind::window) all += str(" window ", first.window, "+", first.diagonal);
  }
  return all;
}
std::string cut(const std::vector<MaskSlice>& slices, std::int64_t batch = 1) {
  return text(detail::cut_into_calls(slices, library(), shape(batch)));
}
std::string cut(const AttentionProblem& problem, const IndexSet& q, const IndexSet& k,
                std::int64_t batch = 1) {
  return cut(mask_slices(problem, q, k), batch);
}

AttentionProblem causal(std::int64_t q_len, std::int64_t kv_len) {
  AttentionProblem problem;
  problem.q_len = q_len, problem.kv_len = kv_len, problem.causal = true;
  return problem;
}

TEST(AttentionCalls, CausalWithAnyDiagonalIsAtMostTwoCalls) {
  EXPECT_EQ(cut({{0, 8, 0, 8, Kind::full, 0, 0}}), "fused 0+8/0+8");
  EXPECT_EQ(cut({{0, 8, 0, 8, Kind::causal, 0, 0}}), "fused 0+8/0+8 causal+0");
  EXPECT_EQ(cut({{0, 4, 0, 8, Kind::causal, 4, 0}}), "fused 0+4/0+8 causal+4");
  // Rows from the sixth on see every key.
  EXPECT_EQ(cut({{0, 9, 0, 8, Kind::causal, 2, 0}}), "fused 0+6/0+8 causal+2, fused 6+3/0+8");
  // Top-left is a form of its own where the diagonal is 0.
  EXPECT_EQ(cut({{0, 9, 0, 4, Kind::causal, 0, 0}}), "fused 0+9/0+4 causal+0");
  // Of positions: queries before the keys, across and behind them.
  const AttentionProblem problem = causal(16, 16);
  EXPECT_EQ(cut(problem, index_range(0, 8), index_range(4, 12)), "fused 4+4/0+4 causal+0");
  EXPECT_EQ(cut(problem, index_range(4, 12), index_range(0, 8)), "fused 0+4/0+8 causal+4, fused 4+4/0+8");
  EXPECT_EQ(cut(problem, index_range(8, 16), index_range(0, 8)), "fused 0+8/0+8");
}

TEST(AttentionCalls, HeadTailShardsAreOneCallEach) {
  const AttentionProblem problem = causal(64, 64);
  const auto shard = [](int rank) { return split_part(HeadTail{}, index_range(0, 64), 4, rank); };
  EXPECT_EQ(cut(problem, shard(1), shard(1)), "fused 0+16/0+16 causal+0");
  EXPECT_EQ(cut(problem, shard(2), shard(1)), "fused 0+16/0+8");  // both halves see the head alone
  EXPECT_EQ(cut(problem, shard(1), shard(2)), "fused 8+8/0+16");  // the tail sees both halves
}

TEST(AttentionCalls, StripedShardsAreCausalWithThemselves) {
  const AttentionProblem problem = causal(64, 64);
  const auto shard = [](std::int64_t block, int rank) {
    return split_part(Striped{block}, index_range(0, 64), 4, rank);
  };
  EXPECT_EQ(cut(problem, shard(4, 1), shard(4, 1)), "fused 0+16/0+16 causal+0");
  EXPECT_EQ(cut(problem, shard(1, 1), shard(1, 2)), "fused 1+15/0+15 causal+0");
  EXPECT_EQ(cut(problem, shard(4, 2), shard(4, 1)),
            "fused 0+4/0+4, fused 4+4/0+8, fused 8+4/0+12, fused 12+4/0+16");
}

TEST(AttentionCalls, WindowsAndWhatOfThemOtherKeysHave) {
  AttentionProblem problem = causal(32, 32);
  problem.window = 5;
  EXPECT_EQ(cut(problem, index_range(0, 32), index_range(0, 32)), "fused 0+32/0+32 window 5+0");
  EXPECT_EQ(cut(problem, index_range(16, 24), index_range(8, 24)), "fused 0+8/4+12 window 5+4");
  // The block before: its last keys, seen by fewer and fewer rows.
  EXPECT_EQ(cut(problem, index_range(16, 24), index_range(8, 16)), "fused 0+4/4+4 window 4+3");
  problem.window = 12;
  EXPECT_EQ(cut(problem, index_range(16, 24), index_range(8, 16)), "fused 0+8/0+8 window 11+7");
  // Queries that are more than the keys: those that see all are a call of their own.
  EXPECT_EQ(cut(problem, index_range(16, 24), index_range(12, 16)), "fused 0+8/0+4");
  problem.window = 9;
  EXPECT_EQ(cut(problem, index_range(16, 24), index_range(12, 16)),
            "fused 0+5/0+4, fused 5+3/1+3 window 3+2");
  // In both directions: the end of the keys cuts the window off.
  problem.causal = false, problem.window = 3;
  EXPECT_EQ(cut(problem, index_range(0, 32), index_range(0, 32)),
            "fused 0+30/0+32 window 5+2, fused 30+2/28+4 window 4+3");
}

TEST(AttentionCalls, DocumentsWithoutGapsArePacked) {
  AttentionProblem problem = causal(64, 64);
  problem.cu_seqlens = {0, 10, 11, 40, 64};
  EXPECT_EQ(cut(problem, index_range(0, 64), index_range(0, 64)), "fused 0+64/0+64 of 4 causal+0");
  EXPECT_EQ(cut(problem, index_range(5, 50), index_range(0, 50)), "fused 0+45/0+50 of 4 causal+5");
  EXPECT_EQ(
      cut(problem, index_range(0, 64), index_range(0, 64), 2),
      "fused 11+29/11+29 causal+0, fused 40+24/40+24 causal+0, fused 0+10/0+10 causal+0, fused 10+1/10+1");
  // Padding at the end, and keys that are not there.
  problem.cu_seqlens = {0, 10, 30};
  EXPECT_EQ(cut(problem, index_range(0, 64), index_range(0, 64)), "fused 0+30/0+30 of 2 causal+0");
  EXPECT_EQ(cut(problem, index_range(0, 64), index_range(12, 64)), "fused 12+18/0+18 causal+0");
}

TEST(AttentionCalls, WhatTheLibraryLacksIsExact) {
  AttentionProblem problem = causal(32, 32);
  problem.window = 5;
  FusedAttention plain = library();
  plain.window = false, plain.packed = false;
  const auto calls = [&](const AttentionProblem& p) {
    return text(
        detail::cut_into_calls(mask_slices(p, index_range(0, 32), index_range(0, 32)), plain, shape()));
  };
  EXPECT_EQ(calls(problem), "fused 0+5/0+5 causal+0, exact 5+27/1+31 window 5+4");
  // A library that has windows, but none whose last keys are elsewhere.
  FusedAttention old = library();
  old.window_tail = false;
  EXPECT_EQ(text(detail::cut_into_calls(mask_slices(problem, index_range(16, 24), index_range(8, 16)), old,
                                        shape())),
            "exact 0+4/4+4 window 5+4");
  problem.window.reset(), problem.cu_seqlens = {0, 8, 32};
  EXPECT_EQ(calls(problem), "fused 8+24/8+24 causal+0, fused 0+8/0+8 causal+0");
}

TEST(AttentionCalls, TooManyPiecesAreOneExactCall) {
  const AttentionProblem problem = causal(1024, 1024);
  const auto shard = [](int rank) { return split_part(Striped{2}, index_range(0, 1024), 4, rank); };
  const auto calls = detail::cut_into_calls(mask_slices(problem, shard(2), shard(1)), library(), shape());
  EXPECT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls.front().engine, AttentionEngine::exact);
}

// Hundreds of documents of a batch cannot be packed. Of 16 heads of 128 values, 1000 queries of a document
// are worth a call; 100 are not.
TEST(AttentionCalls, ManyCallsStayFusedWhereEachIsWorthIt) {
  const auto documents = [](std::int64_t count, std::int64_t length) {
    AttentionProblem problem = causal(count * length, count * length);
    problem.cu_seqlens = {0};
    for (std::int64_t i = 1; i <= count; ++i) problem.cu_seqlens.push_back(i * length);
    const IndexSet all = index_range(0, count * length);
    FusedShape of = shape(2);
    of.q_heads = of.kv_heads = 16, of.head_dim = of.v_head_dim = 128;
    return detail::cut_into_calls(mask_slices(problem, all, all), library(), of);
  };
  const auto fused = [](const std::vector<AttentionCall>& calls) {
    return std::count_if(calls.begin(), calls.end(),
                         [](const AttentionCall& call) { return call.engine == AttentionEngine::fused; });
  };
  EXPECT_EQ(fused(documents(65, 1000)), 65);
  EXPECT_EQ(fused(documents(65, 100)), 0);
  EXPECT_EQ(documents(65, 100).size(), 1U);
  EXPECT_EQ(fused(documents(64, 100)), 64);  // few
  // The largest stay, and the rest is one exact call.
  const std::vector<AttentionCall> most = documents(1100, 1000);
  EXPECT_EQ(fused(most), 1024);
  ASSERT_EQ(most.size(), 1025U);
  EXPECT_EQ(most.back().slices.size(), 76U);
  // A document's queries see its keys: where rows and keys of the call begin alike, so do those of each of
  // its slices.
  EXPECT_EQ(most.back().q.begin, most.back().k.begin);
  for (const MaskSlice& slice : most.back().slices) EXPECT_EQ(slice.q_begin, slice.k_begin);
}

// Whatever the rows: each allowed pair in one call, no other pair in any; calls are forms that the library
// takes, and trimmed.
RC_GTEST_PROP(AttentionCalls, TakeEveryPairOnce, ()) {
  const AttentionProblem problem = *any_problem();
  const IndexSet q = *any_rows(problem.q_len), k = *any_rows(problem.kv_len);
  const std::vector<MaskSlice> slices = mask_slices(problem, q, k);
  if (slices.empty()) return;  // no query sees a key, and nothing is called
  FusedAttention with = library();
  with.window = pick("with.window", rc::gen::arbitrary<bool>()),
  with.window_tail = pick("with.window_tail", rc::gen::arbitrary<bool>()),
  with.packed = pick("with.packed", rc::gen::arbitrary<bool>());
  FusedShape of = shape(pick("batch", rc::gen::element(1, 2)));
  of.backward = pick("of.backward", rc::gen::arbitrary<bool>());
  const std::vector<AttentionCall> calls = detail::cut_into_calls(slices, with, of);
  RC_LOG() << text(calls) << "\n";
  std::map<std::pair<std::int64_t, std::int64_t>, int> times;
  for (const MaskSlice& slice : slices) {
    for (std::int64_t i = 0; i < size(q); ++i) {
      for (std::int64_t j = 0; j < size(k); ++j) {
        if (allows(slice, i, j)) --times[{i, j}];
      }
    }
  }
  for (const AttentionCall& call : calls) {
    std::vector<bool> has_key(static_cast<std::size_t>(call.q.len)),
        has_row(static_cast<std::size_t>(call.k.len));
    for (const MaskSlice& slice : call.slices) {
      for (std::int64_t i = 0; i < call.q.len; ++i) {
        for (std::int64_t j = 0; j < call.k.len; ++j) {
          if (!allows(slice, i, j)) continue;
          ++times[{call.q.begin + i, call.k.begin + j}];
          has_key[static_cast<std::size_t>(i)] = has_row[static_cast<std::size_t>(j)] = true;
        }
      }
    }
    if (call.engine == AttentionEngine::exact) continue;
    RC_ASSERT(std::count(has_key.begin(), has_key.end(), false) == 0);
    RC_ASSERT(std::count(has_row.begin(), has_row.end(), false) == 0);
    const auto form = fused_form(call.slices, call.q.len, call.k.len);
    RC_ASSERT(form.has_value());
    FusedShape taken = of;
    taken.q_len = form->q_len, taken.k_len = form->k_len, taken.mask = form->mask,
    taken.window = form->window;
    taken.documents = form->documents;
    RC_ASSERT(!refuse(with, taken).has_value());
  }
  for (const auto& [pair, count] : times) RC_ASSERT(count == 0);
}

}  // namespace
}  // namespace cp::testing
