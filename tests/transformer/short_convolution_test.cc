// Layers with a gated short convolution: what travels for them, what they cache, and which layouts they
// refuse.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/transformer/memory_reading.h"
#include "shared/transformer/step_plan.h"
#include "tests/transformer/served_steps.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kTaps = 3;

// Of five layers the second and the last one have a convolution, and the latter nothing else.
StepRequest convolved_request(std::string_view layout, bool bias = false) {
  StepRequest request = small_request(layout);
  request.model.layers = 5;
  request.model.convolution = ShortConvolution{kTaps, bias};
  std::vector<LayerKind> layers(5);
  layers[1].mixer = layers[4].mixer = Mixer::convolution;
  layers[4].has_mlp = false;
  set_layers(request.model, layers);
  return request;
}

TEST(ShortConvolutions, ArePlannedWithWhateverIsAroundThem) {
  for (const bool bias : {false, true}) {
    for (const char* layout :
         {"tp=1", "tp=2,micro_batch=3", "tp=4,sequence_parallel=no", "cp=2,strategy=ring,recompute=full",
          "cp=3,tp=2,strategy=pass_q,micro_batch=2,recompute=selective", "pp=2,tp=4",
          "cp=4,strategy=all_gather,balance=head_tail_exchange", "cp=4,strategy=ulysses,dp_shard=2",
          "cp=4,strategy=ring,balance=head_tail,activations=host,recompute=every:2"}) {
      SCOPED_TRACE(str(layout, bias ? " with biases" : ""));
      check_parts(convolved_request(layout, bias));
    }
  }
}

// Elements that all ranks receive by exchanges with this label, in both layers together.
std::int64_t received(const StepRequest& request, std::string_view label) {
  std::int64_t elements = 0;
  for (const Plan& plan : plans_of_all_ranks(request, StepPart::micro_batch)) {
    for (const StepRef& ref : steps_of(plan)) {
      if (ref.step->label != label) continue;
      const auto* collective = std::get_if<Collective>(&ref.step->work);
      const auto* exchange = collective == nullptr ? nullptr : std::get_if<Exchange>(collective);
      if (exchange == nullptr) continue;
      for (const auto& arrival : exchange->recvs) elements += ref.count * arrival.view.numel();
    }
  }
  return elements;
}

// Two rows before each chunk, but for the first one, and for one whose neighbour is on the same rank: of
// contiguous rows three of four ranks get some, of heads and tails in the order 0 1 2 3 3 2 1 0 six chunks.
TEST(ShortConvolutions, MoveTwoRowsForEachChunk) {
  constexpr std::int64_t kLayers = 2, kReach = kTaps - 1;
  const auto rows = [&](const char* layout, std::int64_t width) {
    const StepRequest request = convolved_request(layout);
    EXPECT_EQ(received(request, "d halo"), received(request, "halo"));
    return received(request, "halo") / (kLayers * kReach * width);
  };
  const std::int64_t hidden = convolved_request("tp=1").model.hidden;
  EXPECT_EQ(rows("cp=4,strategy=ring", hidden), 3);
  EXPECT_EQ(rows("cp=4,strategy=ring,balance=head_tail", hidden), 6);
  EXPECT_EQ(rows("cp=4,strategy=ring,balance=head_tail,micro_batch=3", hidden), 18);
  EXPECT_EQ(rows("cp=2,tp=2,strategy=ring", hidden / 2), 2);  // two tp ranks, each with half of the columns
}

TEST(ShortConvolutions, ServeFromTheRowsThatTheySawLast) {
  const std::int64_t hidden = convolved_request("tp=1").model.hidden;
  const auto cached = [](const StepRequest& request, Rank rank) {
    std::int64_t elements = 0;
    for (const Buffer& buffer : step_plan(request, parts_of(request)[0], 0, rank).buffers) {
      if (buffer.name.starts_with("kv_cache/convolved")) elements += buffer.numel;
      EXPECT_FALSE(buffer.name.starts_with("kv_cache/state"));
    }
    return elements;
  };
  const std::int64_t rows = std::int64_t{2} * (kTaps - 1);  // of two layers
  EXPECT_EQ(cached(served(convolved_request("micro_batch=3"), Phase::decode, 23), 0), 3 * rows * hidden);
  EXPECT_EQ(cached(served(convolved_request("tp=2"), Phase::decode, 23), 1), rows * hidden / 2);
  for (const char* layout :
       {"micro_batch=3", "tp=2,micro_batch=2", "pp=5", "cp=2,strategy=pass_q,micro_batch=2",
        "cp=4,strategy=pass_q,balance=head_tail,micro_batch=2"}) {
    for (const std::int64_t new_rows : {1, 4, 6, 24}) {
      SCOPED_TRACE(str(layout, ", ", new_rows, " new rows"));
      StepRequest request = convolved_request(layout, new_rows == 6);
      request = served(request, new_rows == 1 ? Phase::decode : Phase::prefill, 24 - new_rows);
      check_parts(request);
      const int last = request.layout.pp - 1;
      const Plan plan = step_plan(request, parts_of(request)[0], last, request.layout.pp == 1 ? 0 : last);
      const Touched touched(plan, "kv_cache/convolved");
      EXPECT_TRUE(touched.all_are_read_once());
      EXPECT_TRUE(touched.all_are_written_once());
    }
  }
}

// Of contiguous rows the last rank has most to do, and the first one caches the rows, eleven of a sequence.
TEST(ShortConvolutions, AreCachedWhereMemoryIsRead) {
  StepRequest request = convolved_request("cp=2,strategy=ring,balance=contiguous");
  request.model.convolution->taps = 12;
  request = served(request, Phase::prefill, 0);
  const Transformer& model = request.model;
  // Keys and values of three layers, 12 of 24 rows on each rank, in bf16.
  const std::int64_t keys = std::int64_t{3} * 2 * 12 * model.kv_width() * 2,
                     rows = std::int64_t{2} * 11 * model.hidden * 2;
  EXPECT_EQ(memory_of(request, MemoryRules{}).kv_cache, keys + rows);
}

TEST(ShortConvolutions, OfATokenAreTheirKernelsAlone) {
  const Plan plan = step_plan(served(convolved_request("tp=1"), Phase::decode, 23), StepPart::decode, 0, 0);
  std::vector<std::string> kernels;
  bool inside = false;
  for (const StepRef& ref : steps_of(plan)) {
    inside = inside || ref.step->label == "convolution projection";
    if (inside) kernels.emplace_back(operation_name(ref.step->work));
    if (inside && ref.step->label == "out projection") break;
  }
  EXPECT_EQ(kernels, std::vector<std::string>(
                         {"matmul", "gated_activation", "short_convolution", "gated_activation", "matmul"}));
}

TEST(ShortConvolutions, RefuseLayoutsThatCutTheirRowsOrColumns) {
  const auto reason = [](const char* layout) {
    const StepRequest request = convolved_request(layout);
    const auto refusal = refuse(request.model, request.workload, request.layout);
    return refusal ? refusal->text() : std::string();
  };
  EXPECT_EQ(reason("cp=2,strategy=ring,balance=head_tail"), "");
  EXPECT_THAT(reason("cp=2,strategy=ring,balance=striped:1"),
              HasSubstr("balance=striped:1 gives a rank rows in many places, and a convolution needs 2 rows "
                        "before each; use balance=head_tail or contiguous"));
  StepRequest request = convolved_request("tp=4");
  request.model.hidden = 42;
  const auto refusal = refuse(request.model, request.workload, request.layout);
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->reason, HasSubstr("the 42 channels of convolutions are not divisible by tp=4"));
}

}  // namespace
}  // namespace cp::testing
