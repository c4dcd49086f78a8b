#include "shared/transformer/step_buffers.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/messages.h"
#include "tests/transformer/step_requests.h"

namespace cp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Each element is its row and column, and its role.
double number(int role, std::int64_t row, std::int64_t column) {
  return static_cast<double>(100 * row + column) + 0.25 * role;
}
void numbers(int role, const TensorRun& run, std::span<double> values) {
  for_each_row(run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) values[idx(at + i)] = number(role, row, column + i);
  });
}

// Token i of the batch is i modulo the vocabulary, and predicts the next one.
StepBatch batch_of(const StepRequest& request) {
  StepBatch batch;
  for (std::int64_t i = 0; i < request.workload.tokens(); ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(i % request.model.vocab));
    batch.labels.push_back(static_cast<std::int32_t>((i + 1) % request.model.vocab));
  }
  return batch;
}

template <class T>
std::vector<T> bound(const Plan& plan, const Bindings& bindings, const std::string& name) {
  for (const Binding& binding : bindings) {
    if (plan.buffers[idx(binding.buffer)].name != name) continue;
    std::vector<T> values(idx(binding.size_bytes) / sizeof(T));
    std::memcpy(values.data(), binding.data, idx(binding.size_bytes));
    return values;
  }
  return {};
}

// Replica 1 of two has the third and the fourth of four sequences; of 24 rows the second of two ranks has, by
// head and tail, the middle two quarters.
TEST(StepBuffers, HaveTheRowsOfTheRankAtHome) {
  StepRequest request = testing::small_request("dp_shard=2,cp=2,balance=head_tail");
  request.workload.global_batch = 4;
  const Rank self = 3;
  StepBuffers buffers(request, self, numbers);
  ASSERT_EQ(buffers.micro_batches(), 2);
  buffers.begin_step(batch_of(request));
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, self);
  const auto tokens =
      bound<std::int32_t>(plan, buffers.bind(plan, {StepPart::micro_batch, 0, 1}), "working/tokens");
  std::vector<std::int32_t> expected;
  for (std::int32_t row = 6; row < 18; ++row) expected.push_back((3 * 24 + row) % 50);
  EXPECT_EQ(tokens, expected);
  const auto weight =
      bound<float>(plan, buffers.bind(plan, {StepPart::micro_batch, 0, 1}), "working/loss_weight");
  EXPECT_THAT(weight, ElementsAre(1.0F / (4 * 24)));
}

// Of four layers on two stages, and a prediction layer behind them, the second stage has the last two.
// Replica 1 of two has the third and the fourth sequence, and its second micro-batch the fourth.
TEST(StepBuffers, SayWhichWeightsAreDropped) {
  StepRequest request = testing::small_request("dp_shard=2,pp=2");
  request.model.layers = 4, request.model.prediction_layers = 1;
  request.workload.global_batch = 4, request.workload.attention_dropout = 0.25;
  const Rank self = 3;
  StepBuffers buffers(request, self, numbers);
  StepBatch batch = batch_of(request);
  batch.seed = 7, batch.step = 12;
  buffers.begin_step(batch);
  const Plan plan = step_plan(request, StepPart::forward, 1, self);
  const PartRun run{.part = StepPart::forward, .stage = 1, .micro_batch = 1};
  buffers.make_room(plan);
  const std::int64_t seed = dropout_seed(7, 12);
  EXPECT_THAT(bound<std::int64_t>(plan, buffers.bind(plan, run), std::string(kSeedsBuffer)),
              ElementsAre(seed, 3, 3, seed, 4, 3));
  EXPECT_NE(dropout_seed(7, 12), dropout_seed(7, 13));
  EXPECT_NE(dropout_seed(7, 12), dropout_seed(8, 12));
  EXPECT_LT(seed, std::int64_t{1} << 53);
}

// What is owned before any update is what it began with, each element at its place.
TEST(StepBuffers, OwnElementsByTheirNames) {
  for (const char* layout :
       {"tp=1", "tp=2,dp_shard=3", "dp_shard=2,zero=1", "dp_shard=2,zero=2", "pp=2,dp_shard=2"}) {
    const StepRequest request = testing::small_request(layout);
    StepBuffers buffers(request, 0, numbers);
    buffers.begin_step(batch_of(request));
    const Plan plan = step_plan(request, StepPart::update, 0, 0);
    buffers.bind(plan, {StepPart::update});
    std::int64_t owned = 0;
    buffers.for_each_owned(0, [&](const StepBuffers::Owned& part) {
      for_each_row(part.run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i, ++owned) {
          for (int role = 0; role <= 2; ++role)
            EXPECT_EQ(part.value(role, at + i), number(role, row, column + i)) << part.run.block.tensor;
        }
      });
    });
    EXPECT_GT(owned, 0) << layout;
  }
}

// What lies further than a document reaches is token 0 and has no label.
TEST(StepBuffers, LookAheadWithinDocuments) {
  StepRequest request = testing::small_request("cp=2,balance=contiguous");
  request.model.prediction_layers = 1;
  request.workload.cu_seqlens = {0, 3, 9, 24};
  StepBuffers buffers(request, 0, numbers);
  buffers.begin_step(batch_of(request));
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
  const Bindings bindings = buffers.bind(plan, {});
  EXPECT_THAT(bound<std::int32_t>(plan, bindings, "working/tokens 1 ahead"),
              ElementsAre(1, 2, 0, 4, 5, 6, 7, 8, 0, 10, 11, 12));
  EXPECT_THAT(bound<std::int32_t>(plan, bindings, "working/targets 1 ahead"),
              ElementsAre(2, 3, kIgnoredLabel, 5, 6, 7, 8, 9, kIgnoredLabel, 11, 12, 13));
}

// Values are asked for in stretches of at most 2 MiB of doubles: a shard of any size needs no more beside it.
TEST(StepBuffers, AskForLargeTensorsInParts) {
  StepRequest request = testing::small_request("dp_shard=2");
  request.model.layers = 1, request.model.intermediate = 20'000;  // matrices of 640,000 elements
  std::int64_t most = 0, asked = 0;
  StepBuffers buffers(request, 1, [&](int role, const TensorRun& run, std::span<double> values) {
    most = std::max(most, run.count), asked += role == 0 ? run.count : 0;
    numbers(role, run, values);
  });
  buffers.begin_step(batch_of(request));
  buffers.bind(step_plan(request, StepPart::update, 0, 1), {StepPart::update});
  EXPECT_LE(most, 1 << 18);
  std::int64_t owned = 0, wrong = 0;
  buffers.for_each_owned(0, [&](const StepBuffers::Owned& part) {
    for_each_row(part.run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, ++owned) {
        for (int role = 0; role <= 2; ++role)
          wrong += part.value(role, at + i) == number(role, row, column + i) ? 0 : 1;
      }
    });
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(asked, owned);
  EXPECT_GT(owned, 3 * 20'000 * 32 / 2);
}

TEST(StepBuffers, RefuseABatchThatIsNotTheSteps) {
  const StepRequest request = testing::small_request("dp_shard=2");
  StepBuffers buffers(request, 0, numbers);
  StepBatch batch = batch_of(request);
  batch.labels.pop_back();
  EXPECT_THAT(testing::message_of([&] { buffers.begin_step(batch); }),
              HasSubstr("a batch of 48 tokens and 47 labels; the step has 2 sequences of 24"));
  batch.labels.assign(48, kIgnoredLabel);
  EXPECT_THAT(testing::message_of([&] { buffers.begin_step(batch); }),
              HasSubstr("no token of the batch has a label"));
}

}  // namespace
}  // namespace cp
