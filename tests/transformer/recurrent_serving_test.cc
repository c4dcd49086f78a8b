// Serving of models with recurrent layers: what they cache, and that each step reads and leaves it.
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/transformer/step_plan.h"
#include "tests/transformer/served_steps.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

constexpr std::int64_t kKeyHeads = 4, kValueHeads = 8, kKeys = 4, kValues = 6, kConvolution = 4;

// Of seven layers every third has a recurrence, and of these the second one nothing else.
StepRequest recurrent_request(std::string_view layout, RecurrenceRule rule = RecurrenceRule::delta) {
  StepRequest request = small_request(layout);
  Transformer& model = request.model;
  model.layers = 7;
  model.recurrence = Recurrence{rule, kKeyHeads, kValueHeads, kKeys, kValues, kConvolution, true};
  std::vector<LayerKind> layers(7);
  layers[1].mixer = layers[4].mixer = layers[6].mixer = Mixer::recurrence;
  layers[4].has_mlp = false;
  set_layers(model, layers);
  return request;
}

TEST(RecurrentServing, IsProvedByTheChecker) {
  for (const RecurrenceRule rule : {RecurrenceRule::delta, RecurrenceRule::decay}) {
    for (const char* layout :
         {"tp=1", "tp=2,micro_batch=3", "cp=2,strategy=ring", "cp=3,tp=2,strategy=pass_q,micro_batch=2",
          "pp=2,tp=4", "cp=4,strategy=ulysses,micro_batch=2", "cp=2,strategy=all_gather,scan=heads,tp=2",
          "cp=4,strategy=ring,balance=head_tail,scan=heads,micro_batch=3",
          "cp=4,strategy=ring,balance=head_tail,micro_batch=2", "cp=2,pp=3,strategy=pass_q,dp_replicate=2"}) {
      SCOPED_TRACE(str(name(rule), " ", layout));
      const StepRequest request = recurrent_request(layout, rule);
      // 24 and 13 new rows, and so few that a convolution sees several ranks' and cached ones.
      for (const std::int64_t cached : {0, 11, 16}) check_parts(served(request, Phase::prefill, cached));
      check_parts(served(request, Phase::decode, 23));
    }
    for (const char* scan : {"sequential", "recursive_doubling"}) {
      check_parts(served(recurrent_request(str("cp=4,strategy=ring,micro_batch=2,scan=", scan), rule),
                         Phase::prefill, 5));
    }
  }
}

std::map<std::string, std::int64_t> caches_of(const StepRequest& request, Rank rank) {
  std::map<std::string, std::int64_t> cached;
  for (const Buffer& buffer : step_plan(request, parts_of(request)[0], 0, rank).buffers) {
    if (buffer.name.starts_with("kv_cache")) cached[buffer.name] = buffer.numel;
  }
  return cached;
}

// Two of the three layers are of one kind, the third of another. Keys are 2 kv heads x 8 of 24 rows.
TEST(RecurrentServing, CachesAStateOfEachRequestAndTheLastConvolvedRows) {
  constexpr std::int64_t kState = kValueHeads * kKeys * kValues,
                         kRows = (kConvolution - 1) * (2 * kKeyHeads * kKeys + kValueHeads * kValues);
  constexpr std::int64_t kKeyCache = std::int64_t{4} * 3 * 24 * 16;  // four layers, three requests
  using Caches = std::map<std::string, std::int64_t>;
  EXPECT_EQ(caches_of(served(recurrent_request("micro_batch=3"), Phase::decode, 23), 0),
            (Caches{{"kv_cache/k of kind 0", kKeyCache},
                    {"kv_cache/v of kind 0", kKeyCache},
                    {"kv_cache/state of kind 1", 6 * kState},
                    {"kv_cache/convolved of kind 1", 6 * kRows},
                    {"kv_cache/state of kind 2", 3 * kState},
                    {"kv_cache/convolved of kind 2", 3 * kRows}}));
  const auto of_rank = [](const char* layout, Phase phase, Rank rank) {
    Caches caches =
        caches_of(served(recurrent_request(layout), phase, 23 - (phase == Phase::prefill ? 10 : 0)), rank);
    return std::pair(caches["kv_cache/state of kind 1"], caches["kv_cache/convolved of kind 1"]);
  };
  EXPECT_EQ(of_rank("tp=2,micro_batch=3", Phase::decode, 1), std::pair(3 * kState, 3 * kRows));
  // A prompt is cached where the next token is written.
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    EXPECT_EQ(of_rank("cp=2,strategy=pass_q", phase, 0), std::pair(2 * kState, 2 * kRows));
    EXPECT_EQ(of_rank("cp=2,strategy=pass_q", phase, 1), std::pair(std::int64_t{0}, std::int64_t{0}));
    EXPECT_EQ(of_rank("cp=2,strategy=pass_q,scan=heads", phase, 0), std::pair(kState, 2 * kRows));
    EXPECT_EQ(of_rank("cp=2,strategy=pass_q,scan=heads", phase, 1), std::pair(kState, std::int64_t{0}));
  }
}

// Whatever the layers, ranks and rows, each element that is cached of a recurrence is read once and written
// once: no layer takes another's, and none is left.
TEST(RecurrentServing, EachStepReadsAndLeavesWhatItsLayersCache) {
  for (const char* layout :
       {"micro_batch=3", "tp=2,micro_batch=2", "pp=2", "cp=2,strategy=pass_q,micro_batch=2",
        "cp=4,strategy=pass_q,balance=head_tail,micro_batch=2",
        "cp=4,strategy=pass_q,scan=heads,micro_batch=2"}) {
    for (const std::int64_t new_rows : {1, 4, 6, 24}) {
      SCOPED_TRACE(str(layout, ", ", new_rows, " new rows"));
      const StepRequest request =
          served(recurrent_request(layout), new_rows == 1 ? Phase::decode : Phase::prefill, 24 - new_rows);
      const Plan plan = step_plan(request, parts_of(request)[0], 0, 0);
      for (const char* cache : {"kv_cache/state", "kv_cache/convolved"}) {
        const Touched touched(plan, cache);
        EXPECT_TRUE(touched.all_are_read_once()) << cache;
        EXPECT_TRUE(touched.all_are_written_once()) << cache;
      }
    }
  }
}

// Of a token: no copy, no scan, and the kernels of a layer are as many as without a cache.
TEST(RecurrentServing, ATokenNeedsTheLayersKernelsAlone) {
  for (const char* layout : {"tp=1", "cp=4,strategy=pass_q"}) {
    const StepRequest request = served(recurrent_request(layout), Phase::decode, 23);
    const Plan plan = step_plan(request, StepPart::decode, 0, 0);
    std::vector<std::string> kernels;
    bool inside = false;
    for (const StepRef& ref : steps_of(plan)) {
      const std::string& label = ref.step->label;
      inside = inside || label == "recurrence projection";
      if (inside) kernels.emplace_back(operation_name(ref.step->work));
      if (inside && label == "out projection") break;
    }
    EXPECT_EQ(kernels, std::vector<std::string>({"matmul", "short_convolution", "decay_and_beta",
                                                 "recurrence_forward", "gated_norm", "matmul"}))
        << layout;
  }
}

}  // namespace
}  // namespace cp::testing
