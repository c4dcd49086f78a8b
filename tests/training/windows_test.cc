#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/training/learning_rate.h"
#include "shared/training/permutation.h"
#include "shared/training/token_windows.h"
#include "shared/transformer/step_buffers.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Token i of the text is i.
std::vector<std::int32_t> numbers(std::int64_t first, std::int64_t count) {
  std::vector<std::int32_t> tokens(idx(count));
  std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(first));
  return tokens;
}

RC_GTEST_PROP(Permutation, TakesEachIndexOnce, ()) {
  const auto count = pick("count", rc::gen::inRange<std::int64_t>(1, 300));
  const Permutation permutation(count, pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  std::set<std::int64_t> seen;
  for (std::int64_t index = 0; index < count; ++index) seen.insert(permutation(index));
  RC_ASSERT(std::ssize(seen) == count);
  RC_ASSERT(*seen.begin() == 0 && *seen.rbegin() == count - 1);
}

TEST(Permutation, OfAnotherSeedIsAnother) {
  const Permutation one(1000, 1), two(1000, 2);
  int equal = 0;
  for (std::int64_t index = 0; index < 1000; ++index) equal += one(index) == two(index) ? 1 : 0;
  EXPECT_LT(equal, 20);  // one in the mean
}

// Each token but the last predicts the next one; no window is read twice in an epoch, and none of those for
// evaluation is trained on.
RC_GTEST_PROP(TokenWindows, AreReadOncePerEpoch, ()) {
  WindowOptions options;
  options.seq_len = pick("seq_len", rc::gen::inRange<std::int64_t>(1, 9));
  const auto windows = pick("windows", rc::gen::inRange<std::int64_t>(2, 40));
  options.tokens =
      windows * options.seq_len + 1 + pick("rest", rc::gen::inRange<std::int64_t>(0, options.seq_len));
  options.global_batch = pick("global_batch", rc::gen::inRange<std::int64_t>(1, 5));
  options.evaluation = pick("evaluation", rc::gen::elementOf(std::vector<double>{0.01, 0.1, 0.5}));
  options.seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const TokenWindows text(options, numbers);
  RC_ASSERT(text.training_windows() + text.evaluation_windows() == windows);
  std::multiset<std::int32_t> begins;
  const std::int64_t steps = 2 * text.training_windows();  // global_batch * 2 epochs
  for (std::int64_t step = 1; step <= steps; ++step) {
    const TokenBatch batch = text.training_batch(step);
    RC_ASSERT(std::ssize(batch.tokens) == options.seq_len * options.global_batch);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      RC_ASSERT(batch.labels[i] == batch.tokens[i] + 1);
      if (static_cast<std::int64_t>(i) % options.seq_len == 0) begins.insert(batch.tokens[i]);
    }
  }
  for (std::int64_t window = 0; window < windows; ++window) {
    const auto begin = static_cast<std::int32_t>(window * options.seq_len);
    const std::int64_t expected = window < text.training_windows() ? 2 * options.global_batch : 0;
    RC_ASSERT(static_cast<std::int64_t>(begins.count(begin)) == expected);
  }
  const TokenBatch evaluation = text.evaluation_batch(text.evaluation_batches() - 1);
  for (const std::int32_t token : evaluation.tokens)
    RC_ASSERT(token >= text.training_windows() * options.seq_len);
}

// A document of a window ends before each begin within it, and its last token predicts none, even if the next
// document begins behind the window.
RC_GTEST_PROP(TokenWindows, DocumentsEndBeforeTheNextBegins, ()) {
  WindowOptions options;
  options.seq_len = pick("seq_len", rc::gen::inRange<std::int64_t>(1, 9));
  options.tokens = 4 * options.seq_len + 1, options.global_batch = 4, options.evaluation = 0;
  const auto drawn =
      pick("begins",
           rc::gen::container<std::set<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, options.tokens)));
  const TokenWindows text(options, numbers, [&](std::int64_t first, std::int64_t count) {
    return std::vector<std::int64_t>(drawn.lower_bound(first), drawn.lower_bound(first + count));
  });
  const TokenBatch batch = text.training_batch(1);
  for (std::int64_t i = 0; i < std::ssize(batch.tokens); ++i) {
    const std::int64_t token = batch.tokens[idx(i)], row = i % options.seq_len;
    RC_ASSERT(batch.labels[idx(i)] == (drawn.contains(token + 1) ? kIgnoredLabel : token + 1));
    const std::vector<std::int64_t>& ends = batch.cu_seqlens[idx(i / options.seq_len)];
    RC_ASSERT(std::binary_search(ends.begin(), ends.end(), row) == (row == 0 || drawn.contains(token)));
    RC_ASSERT(ends.back() == options.seq_len);
  }
}

TEST(TokenWindows, RefuseATextThatIsTooShort) {
  WindowOptions options;
  options.tokens = 20, options.seq_len = 12;
  EXPECT_THAT(
      testing::message_of([&] { TokenWindows(options, numbers); }),
      HasSubstr("a text of 20 tokens has 1 sequences of 12 tokens and one more to predict; 2 are needed, one "
                "of them for the evaluation; use a longer text, or seq_len 9"));
  options.evaluation = 0;
  EXPECT_EQ(TokenWindows(options, numbers).training_windows(), 1);
}

TEST(LearningRate, RisesToItsPeakAndFalls) {
  const LearningRate rate{1e-3, 10, 110, 0.1};
  EXPECT_DOUBLE_EQ(rate.at(1), 1e-4);
  EXPECT_DOUBLE_EQ(rate.at(10), 1e-3);
  EXPECT_NEAR(rate.at(60), 5.5e-4, 1e-12);  // half way down
  EXPECT_DOUBLE_EQ(rate.at(110), 1e-4);
  EXPECT_DOUBLE_EQ((LearningRate{1e-3, 0, 1, 0.1}.at(1)), 1e-4);
}

}  // namespace
}  // namespace cp
