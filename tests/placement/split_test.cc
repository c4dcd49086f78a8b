#include "shared/placement/split.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "tests/placement/huge.h"
#include "tests/placement/index_set_generator.h"
#include "tests/placement/split_generator.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kHuge;
using testing::message_of;

std::vector<std::int64_t> sizes_of(const Split& split, std::int64_t length, int parts) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < parts; ++i) sizes.push_back(size(split_part(split, index_range(0, length), parts, i)));
  return sizes;
}

TEST(Split, ChunkedFollowsTorchChunk) {
  EXPECT_EQ(sizes_of(Chunked{}, 8, 4), (Indices{2, 2, 2, 2}));
  EXPECT_EQ(sizes_of(Chunked{}, 9, 4), (Indices{3, 3, 3, 0}));
  EXPECT_EQ(sizes_of(Chunked{}, 7, 4), (Indices{2, 2, 2, 1}));
  EXPECT_EQ(sizes_of(Chunked{}, 1, 4), (Indices{1, 0, 0, 0}));
  EXPECT_EQ(sizes_of(Chunked{}, 0, 4), (Indices{0, 0, 0, 0}));
  EXPECT_EQ(sizes_of(Chunked{}, 7, 1), (Indices{7}));
}

// J13: MindSpeed's sizes, which are not torch.chunk's.
TEST(Split, BalancedGivesTheFirstRanksOneMore) {
  EXPECT_EQ(sizes_of(Balanced{}, 5, 4), (Indices{2, 1, 1, 1}));
  EXPECT_EQ(sizes_of(Balanced{}, 6, 4), (Indices{2, 2, 1, 1}));
  EXPECT_EQ(sizes_of(Balanced{}, 8, 4), (Indices{2, 2, 2, 2}));
  EXPECT_EQ(sizes_of(Balanced{}, 0, 4), (Indices{0, 0, 0, 0}));
}

TEST(Split, HeadTailPairsEarlyAndLateParts) {
  EXPECT_EQ(split_part(HeadTail{}, index_range(0, 32), 2, 0), (IndexSet{{0, 8, 24, 2}}));
  EXPECT_EQ(split_part(HeadTail{}, index_range(0, 32), 2, 1), index_range(8, 24));
  // 10 = 2+2+2+2+1+1 for three ranks: the pairs weigh 3, 3 and 4.
  EXPECT_EQ(split_part(HeadTail{}, index_range(0, 10), 3, 0), (IndexSet{{0, 2, 2, 1}, {9, 1, 1, 1}}));
  EXPECT_EQ(sizes_of(HeadTail{}, 10, 3), (Indices{3, 3, 4}));
  EXPECT_EQ(sizes_of(HeadTail{}, 1, 2), (Indices{1, 0}));
}

TEST(Split, StripedIsOnePeriodicRun) {
  EXPECT_EQ(split_part(Striped{512}, index_range(0, kHuge), 8, 3),
            (IndexSet{{1536, 512, 4096, kHuge / 4096}}));
  EXPECT_EQ(split_part(Striped{2}, index_range(0, 11), 2, 1), (IndexSet{{2, 2, 4, 2}, {10, 1, 1, 1}}));
  EXPECT_EQ(split_part(Striped{kHuge * 1024}, index_range(0, 11), 2, 0), index_range(0, 11));
  EXPECT_EQ(split_part(Striped{kHuge * 1024}, index_range(0, 11), 2, 1), IndexSet{});
  EXPECT_EQ(split_part(Striped{3}, IndexSet{}, 2, 0), IndexSet{});
}

TEST(Split, PerSequenceCutsAtGlobalBoundariesOfAListThatOthersLeft) {
  // The outer axis left [0, 4) and [12, 16); the documents are [0, 2), [2, 14), [14, 16).
  const IndexSet list = split_part(HeadTail{}, index_range(0, 16), 2, 0);
  ASSERT_EQ(expand(list), (Indices{0, 1, 2, 3, 12, 13, 14, 15}));
  const PerSequence split{{0, 2, 14, 16}, Chunked{}};
  EXPECT_EQ(expand(split_part(split, list, 2, 0)), (Indices{0, 2, 3, 14}));
  EXPECT_EQ(expand(split_part(split, list, 2, 1)), (Indices{1, 12, 13, 15}));
}

TEST(Split, PerSequenceKeepsLocalOrderWithinADocument) {
  const IndexSet list = {{12, 4, 4, 1}, {0, 2, 8, 2}, {3, 1, 8, 2}};  // 12..15, 0 1 8 9, 3 11
  const PerSequence split{{0, 10, 16}, Chunked{}};
  EXPECT_EQ(expand(split_part(split, list, 2, 0)), (Indices{0, 1, 8, 12, 13, 14}));
  EXPECT_EQ(expand(split_part(split, list, 2, 1)), (Indices{9, 3, 15, 11}));
}

TEST(Split, PerSequenceOverManyDocumentsOfAListOfManyRuns) {
  constexpr std::int64_t kDocuments = 4096, kLength = 1024;
  PerSequence split{{0}, HeadTail{}};
  for (std::int64_t i = 1; i <= kDocuments; ++i) split.cu_seqlens.push_back(i * kLength);
  const IndexSet outer = split_part(split, index_range(0, kDocuments * kLength), 4, 0);
  ASSERT_EQ(size(outer), kDocuments * kLength / 4);
  EXPECT_EQ(size(split_part(split, outer, 4, 3)), kDocuments * kLength / 16);
}

RC_GTEST_PROP(Split, PartsAgreeWithDealingElements, ()) {
  const auto dim_size = pick("dim_size", rc::gen::inRange<std::int64_t>(0, 60));
  const int outer_parts = pick("outer_parts", rc::gen::inRange(1, 6)),
            parts = pick("parts", rc::gen::inRange(1, 6));
  const Split outer = random_split(expand(index_range(0, dim_size)), dim_size, outer_parts);
  for (int o = 0; o < outer_parts; ++o) {
    const IndexSet list = split_part(outer, index_range(0, dim_size), outer_parts, o);
    const Split inner = random_split(expand(list), dim_size, parts);
    validate_split(inner, list, dim_size, parts);
    for (int i = 0; i < parts; ++i) {
      const IndexSet part = split_part(inner, list, parts, i);
      RC_ASSERT(expand(part) == split_elements(inner, expand(list), parts, i));
      RC_ASSERT(canonical(part) == part);
    }
  }
}

RC_GTEST_PROP(Split, RangesAgreeWithParts, ()) {
  const auto begin = pick("begin", rc::gen::inRange<std::int64_t>(0, 20)),
             end = begin + pick("length", rc::gen::inRange<std::int64_t>(0, 40));
  const int parts = pick("parts", rc::gen::inRange(1, 7)), index = pick("index", rc::gen::inRange(0, parts));
  const Split split = random_split(expand(index_range(begin, end)), end, parts);
  const std::optional<IndexRange> range = split_range(split, {begin, end}, parts, index);
  const bool makes_ranges = std::holds_alternative<Chunked>(split) ||
                            std::holds_alternative<Balanced>(split) || std::holds_alternative<Sized>(split);
  RC_ASSERT(range.has_value() == makes_ranges);
  if (range) {
    RC_ASSERT(index_range(range->begin, range->end) ==
              split_part(split, index_range(begin, end), parts, index));
  }
}

TEST(Split, ValidationNamesValuesAndWhatWorks) {
  const auto message = [](const Split& split, std::int64_t length, std::int64_t dim_size, int parts) {
    return message_of([&] { validate_split(split, index_range(0, length), dim_size, parts); });
  };
  EXPECT_THAT(
      message(Sized{{3, 2, 1}}, 8, 8, 4),
      AllOf(HasSubstr("sizes 3/2/1 are for 3 ranks, but the axis has 4"), HasSubstr("sizes:2/2/2/2")));
  EXPECT_THAT(message(Sized{{3, 2, 1, 1}}, 8, 8, 4), HasSubstr("sum to 7, but they split 8"));
  EXPECT_THAT(message(Sized{{3, 2, 1, 9}}, 8, 8, 4), HasSubstr("sum to more than the 8 indices"));
  EXPECT_THAT(message(Sized{{kHuge << 22, kHuge << 22, kHuge << 22}}, 8, 8, 3),
              HasSubstr("sum to more than"));
  EXPECT_THAT(message(Sized{{9, -1}}, 8, 8, 2), HasSubstr("sum to more than"));
  EXPECT_THAT(message(Sized{{-1, 9}}, 8, 8, 2), HasSubstr("hold -1"));
  EXPECT_EQ(message(Sized{{3, 0, 5}}, 8, 16, 3), "no error");
  EXPECT_THAT(message(Striped{0}, 8, 8, 2), HasSubstr("striped:0"));
  EXPECT_THAT(message(Dealt{0, {0}}, 8, 8, 2), HasSubstr("dealt:0:0 has a block below 1"));
  EXPECT_THAT(message(Dealt{3, {0, 1}}, 8, 8, 2),
              HasSubstr("names 2 owners, but 8 indices are 3 blocks of 3"));
  EXPECT_THAT(message(Dealt{4, {0, 2}}, 8, 8, 2), HasSubstr("deals to rank 2 of 2; use 0 to 1"));
  EXPECT_THAT(message(PerSequence{{0, 4, 8}, Striped{-2}}, 8, 8, 2), HasSubstr("striped:-2"));
  EXPECT_THAT(message(PerSequence{{}, Chunked{}}, 8, 8, 2), HasSubstr("use, for example, 0/8"));
  EXPECT_THAT(message(PerSequence{{1, 8}, Chunked{}}, 8, 8, 2), HasSubstr("begin with 1"));
  EXPECT_THAT(message(PerSequence{{0, 6, 4, 8}, Chunked{}}, 8, 8, 2), HasSubstr("descend from 6 to 4"));
  EXPECT_THAT(message(PerSequence{{0, 4}, Chunked{}}, 8, 8, 2),
              HasSubstr("end with 4, but the dimension has 8 elements; end them with 8"));
  // The end is that of the dimension, whatever the list that is left holds.
  EXPECT_EQ(message(PerSequence{{0, 0, 4, 8}, Chunked{}}, 3, 8, 2), "no error");
  EXPECT_EQ(message(PerSequence{{0}, Chunked{}}, 0, 0, 2), "no error");
}

// Whatever earlier axes left of a document, the sizes are for that, or for nothing of it.
TEST(Split, SizesOfEachDocumentFitWhatIsLeftOfIt) {
  const PerSequence split{{0, 4, 4, 10}, SizedEach{{{1, 3}, {0, 0}, {6, 0}}}};
  const auto message = [](const PerSequence& documents, const IndexSet& list) {
    return message_of([&] { validate_split(documents, list, 10, 2); });
  };
  const IndexSet all = index_range(0, 10);
  EXPECT_EQ(message(split, all), "no error");
  EXPECT_EQ(message(split, index_range(0, 4)), "no error") << "the last document is elsewhere";
  EXPECT_EQ(message(split, index_range(4, 10)), "no error");
  EXPECT_THAT(message(split, index_range(0, 3)),
              AllOf(HasSubstr("document 0 at 0 .. 4: sizes 1/3"), HasSubstr("more than the 3 indices"),
                    HasSubstr("use, for example, sizes:2/1")));
  const auto with = [&](const std::vector<std::int64_t>& last) {
    PerSequence changed = split;
    std::get<SizedEach>(changed.inner).sizes.back() = last;
    return changed;
  };
  EXPECT_THAT(message(with({5, 0}), all),
              HasSubstr("document 2 at 4 .. 10: sizes 5/0 sum to 5, but they split 6"));
  EXPECT_THAT(message(with({1, 2, 3}), all),
              HasSubstr("are for 3 ranks, but the axis has 2; use, for example, sizes:3/3"));
  EXPECT_THAT(message(with({7, -1}), all), HasSubstr("sum to more than the 6"));
  EXPECT_THAT(message(with({-1, 7}), all), HasSubstr("hold -1"));
  // Of a document that is elsewhere they still must be sizes of it.
  EXPECT_THAT(message(with({4, 3}), index_range(0, 4)), HasSubstr("sum to more than the 6"));
  EXPECT_THAT(message(with({kHuge << 22, kHuge << 22}), index_range(0, 4)), HasSubstr("sum to more than"));
  EXPECT_THAT(message(with({1, 2, 3}), index_range(0, 4)), HasSubstr("are for 3 ranks"));
  EXPECT_THAT(message({{0, 10}, split.inner}, all),
              AllOf(HasSubstr("given for 3 documents, but cu_seqlens 0/10 cut 1"),
                    HasSubstr("one list for each document")));
  EXPECT_THAT(message({{0, 9}, split.inner}, all), HasSubstr("end with 9"));
  // An empty document holds nothing.
  EXPECT_THAT(message({{0, 0, 10}, SizedEach{{{1, 0}, {4, 6}}}}, all), HasSubstr("document 0 at 0 .. 0"));
  EXPECT_TRUE(fits_one_length(split));
  EXPECT_FALSE(fits_one_length(PerSequence{{0, 10}, Balanced{}}));
}

TEST(Split, SizesOfEachDocumentAreInTheOrderOfTheRanks) {
  const PerSequence split{{0, 4, 4, 10}, SizedEach{{{1, 0, 3}, {0, 0, 0}, {2, 4, 0}}}};
  EXPECT_EQ(expand(split_part(split, index_range(0, 10), 3, 0)), (Indices{0, 4, 5}));
  EXPECT_EQ(expand(split_part(split, index_range(0, 10), 3, 1)), (Indices{6, 7, 8, 9}));
  EXPECT_EQ(expand(split_part(split, index_range(0, 10), 3, 2)), (Indices{1, 2, 3}));
  // Of a list in another order, and of documents that it lacks.
  const IndexSet reversed = {{6, 4, 4, 1}, {4, 2, 2, 1}};
  EXPECT_EQ(expand(split_part(split, reversed, 3, 0)), (Indices{6, 7}));
  EXPECT_EQ(expand(split_part(split, reversed, 3, 1)), (Indices{8, 9, 4, 5}));
}

TEST(Split, TextForms) {
  const std::vector<std::pair<std::string, Split>> forms = {
      {"", Chunked{}},
      {"balanced", Balanced{}},
      {"head_tail", HeadTail{}},
      {"striped:512", Striped{512}},
      {"sizes:3/2/1/2", Sized{{3, 2, 1, 2}}},
      {"dealt:64:0/1/1/0", Dealt{64, {0, 1, 1, 0}}},
      {"dealt:64:", Dealt{64, {}}},
      {"per_sequence:0/10/50", PerSequence{{0, 10, 50}, Chunked{}}},
      {"per_sequence:0/10/50:head_tail", PerSequence{{0, 10, 50}, HeadTail{}}},
      {"per_sequence:0/10/50:striped:4", PerSequence{{0, 10, 50}, Striped{4}}},
      {"per_sequence:0/10/50:sizes:4/6:30/10", PerSequence{{0, 10, 50}, SizedEach{{{4, 6}, {30, 10}}}}},
      {"per_sequence:0/8:sizes:4/4", PerSequence{{0, 8}, SizedEach{{{4, 4}}}}},
      {"per_sequence:0:sizes:", PerSequence{{0}, SizedEach{}}},
  };
  for (const auto& [text, split] : forms) {
    EXPECT_EQ(to_string(split), text);
    EXPECT_EQ(parse_split(text), split) << text;
  }
  EXPECT_EQ(parse_split("chunked"), Split(Chunked{}));
  EXPECT_EQ(parse_split(" striped:4Ki "), Split(Striped{4096}));
  EXPECT_EQ(parse_split("per_sequence:0/8:chunked"), Split(PerSequence{{0, 8}, Chunked{}}));
}

RC_GTEST_PROP(Split, TextRoundTrips, ()) {
  const Split split = random_split(expand(index_range(0, 30)), 40, pick("parts", rc::gen::inRange(1, 5)));
  RC_ASSERT(parse_split(to_string(split)) == split);
}

TEST(Split, ParseErrorsQuoteTheTextAndListWhatIsKnown) {
  const auto message = [](std::string_view text) { return message_of([&] { parse_split(text); }); };
  EXPECT_THAT(message("headtail"),
              AllOf(HasSubstr("'headtail'"), HasSubstr("no such split"), HasSubstr("head_tail"),
                    HasSubstr("striped:BLOCK"), HasSubstr("per_sequence:")));
  EXPECT_THAT(message("striped"),
              AllOf(HasSubstr("'striped' needs an argument"), HasSubstr("striped:BLOCK")));
  EXPECT_THAT(message("striped:x"), AllOf(HasSubstr("'striped:x'"), HasSubstr("'x'")));
  EXPECT_THAT(message("balanced:2"), HasSubstr("'balanced' has no argument"));
  EXPECT_THAT(message(":2"), HasSubstr("has no argument"));
  EXPECT_THAT(message("sizes:"), HasSubstr("needs a list of numbers"));
  EXPECT_THAT(message("sizes:3//2"), HasSubstr("'sizes:3//2'"));
  EXPECT_THAT(message("sizes:3/2/"), HasSubstr("'sizes:3/2/'"));
  EXPECT_THAT(message("per_sequence:0/8:dealt:4:0/1"),
              HasSubstr("'dealt:4:0/1' cannot act within a document"));
  EXPECT_THAT(message("per_sequence:0/8:sizes"), HasSubstr("'sizes' needs an argument"));
  EXPECT_THAT(message("per_sequence:0/8:sizes:4/4:"),
              AllOf(HasSubstr("needs a list of numbers"), HasSubstr("one list for each document")));
  EXPECT_THAT(message("per_sequence:0/8:sizes:4/x"), HasSubstr("'x'"));
  EXPECT_THAT(message("per_sequence:0/8:per_sequence:0/8"), HasSubstr("cannot act within a document"));
  EXPECT_THAT(message("per_sequence:0/8:snake"), HasSubstr("'snake'"));
}

}  // namespace
}  // namespace cp
