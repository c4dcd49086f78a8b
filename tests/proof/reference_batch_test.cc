// The batches of the reference of a step: which label each token has.
#include "sim/proof/reference/reference_batch.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

RC_GTEST_PROP(ReferenceBatch, LabelsAreTheNextTokensOfTheDocument, ()) {
  sim::BatchOptions options;
  options.vocab = pick("vocab", rc::gen::inRange(1, 300));
  options.sequences = pick("sequences", rc::gen::inRange(1, 5));
  options.seq_len = pick("seq_len", rc::gen::inRange(1, 40));
  options.documents = pick("documents", rc::gen::inRange(1, 8));
  options.ignored = pick("ignored", rc::gen::element(0.0, 0.0, 0.5));
  options.without_label = pick("without_label", rc::gen::inRange(0, 3));
  options.seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const sim::ReferenceBatch batch = sim::draw_batch(options);
  sim::validate_batch(batch, options.vocab);
  std::int64_t labelled = 0;
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const std::vector<std::int64_t>& cuts = batch.cu_seqlens[idx(s)];
    RC_ASSERT(std::ssize(cuts) == std::min(options.documents, options.seq_len) + 1);
    for (std::int64_t i = 0; i < options.seq_len; ++i) {
      const std::int64_t row = s * options.seq_len + i;
      const std::int32_t label = batch.labels[idx(row)];
      labelled += label == sim::kIgnoredLabel ? 0 : 1;
      if (std::find(cuts.begin(), cuts.end(), i + 1) != cuts.end() || s < options.without_label)
        RC_ASSERT(label == sim::kIgnoredLabel);
      else if (options.ignored == 0 || label != sim::kIgnoredLabel)
        RC_ASSERT(label == batch.tokens[idx(row + 1)]);
    }
  }
  RC_ASSERT(labelled == batch.labelled());
}

TEST(ReferenceBatch, WhatDoesNotFitIsRefused) {
  const sim::ReferenceBatch batch = sim::draw_batch({17, 2, 5, 2, 0, 0, 1});
  const auto message = [&](auto change) {
    sim::ReferenceBatch changed = batch;
    change(changed);
    return message_of<InvalidInput>([&] { sim::validate_batch(changed, 17); });
  };
  EXPECT_THAT(message([](sim::ReferenceBatch& b) { b.tokens[3] = 17; }),
              HasSubstr("token 3 is 17; use 0 to 16"));
  EXPECT_THAT(message([](sim::ReferenceBatch& b) { b.labels[3] = -1; }), HasSubstr("or -100 for none"));
  EXPECT_THAT(message([](sim::ReferenceBatch& b) { b.labels.pop_back(); }),
              HasSubstr("9 labels; it needs 10"));
  EXPECT_THAT(message([](sim::ReferenceBatch& b) {
                b.cu_seqlens[1] = {0, 3};
              }),
              HasSubstr("0/3 of sequence 1 must begin with 0, ascend, and end with seq_len=5"));
}

}  // namespace
}  // namespace cp::testing
