// Prediction layers in the plans of a step: where they stand, what they share with the model, and what they
// add to its memory, its parameters and its flops.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "shared/transformer/flops.h"
#include "shared/transformer/least_memory.h"
#include "shared/transformer/memory_reading.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/sizes.h"
#include "tests/support/messages.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A dense layer and two with experts, of which the last kind is.
StepRequest predicting(std::string_view layout, std::int64_t depths) {
  StepRequest request = small_request(layout);
  request.model.experts = Experts{4, 2, 24, 16};
  set_layers(request.model, {{{}, {}, true}, {}, {}});
  request.model.prediction_layers = depths;
  return request;
}

// The steps of a plan, Repeats unrolled.
std::vector<const Step*> all_steps(const Plan& plan) {
  std::vector<const Step*> steps;
  for (const StepRef& ref : steps_of(plan)) {
    for (std::int64_t i = 0; i < ref.count; ++i) steps.push_back(ref.step);
  }
  return steps;
}
std::int64_t count(const Plan& plan, std::string_view label) {
  const std::vector<const Step*> steps = all_steps(plan);
  return std::count_if(steps.begin(), steps.end(), [&](const Step* step) { return step->label == label; });
}
std::string list(const Plan& plan) {
  std::string lines;
  for (const StepRef& ref : steps_of(plan))
    lines += str(plan.streams[idx(ref.step->stream)], ": ", operation_name(ref.step->work), " \"",
                 ref.step->label, "\"\n");
  return lines;
}
const Buffer* find_buffer(const Plan& plan, std::string_view name) {
  const auto found = std::find_if(plan.buffers.begin(), plan.buffers.end(),
                                  [&](const Buffer& buffer) { return buffer.name == name; });
  return found == plan.buffers.end() ? nullptr : &*found;
}
std::int64_t bytes_named(const Plan& plan, std::string_view term) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan.buffers) bytes += buffer.name.starts_with(term) ? buffer.bytes() : 0;
  return bytes;
}
std::int64_t bytes_of_caller(const Plan& plan, std::string_view term) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::temporary && buffer.name.starts_with(term)) bytes += buffer.bytes();
  }
  return bytes;
}

// ---- what stands where ----

TEST(PredictionLayers, JoinRowsAndTokensAheadAndGoBackAtOnce) {
  StepRequest request = small_request("tp=2");
  request.model.layers = 1, request.model.prediction_layers = 1;
  const std::string all = list(step_plan(request, StepPart::micro_batch, 0, 0));
  EXPECT_THAT(all, HasSubstr(R"(compute: accumulate "residual"
compute: embed "embed"
tp: reduce_scatter "scatter embedding"
compute: rms_norm "norm of rows before"
compute: rms_norm "norm of embedded rows"
compute: matmul "join"
compute: rms_norm "attention norm"
)"));
  // Its loss, its layer and its join are gone through backward before the model's loss.
  EXPECT_THAT(all, HasSubstr(R"(tp: reduce_scatter "scatter d attention"
compute: rms_norm_backward "norm backward"
compute: matmul "join, dgrad"
compute: matmul "join, wgrad"
compute: rms_norm_backward "norm of rows before, backward"
compute: rms_norm_backward "norm of embedded rows, backward"
tp: all_gather "gather d embedding"
compute: embed_backward "embed backward"
compute: rms_norm "final norm"
)"));
}

TEST(PredictionLayers, HaveLabelsTokensAndLossesOfTheirOwn) {
  const Plan plan =
      step_plan(predicting("cp=2,strategy=ring,balance=head_tail", 2), StepPart::micro_batch, 0, 1);
  for (const char* name : {"working/tokens", "working/targets"}) {
    for (const char* depth : {"", " 1 ahead", " 2 ahead"}) {
      const Buffer* buffer = find_buffer(plan, str(name, depth));
      ASSERT_NE(buffer, nullptr) << name << depth;
      EXPECT_EQ(buffer->kind, BufferKind::input);  // nothing is exchanged for them
      EXPECT_EQ(buffer->numel, 12);
    }
  }
  EXPECT_EQ(find_buffer(plan, "working/losses 2 ahead")->kind, BufferKind::output);
  EXPECT_EQ(find_buffer(plan, "working/losses 3 ahead"), nullptr);
}

// 28 rows in six chunks are 5, 5, 5, 5, 4 and 4: of the first and the last one rank 0 has 9, and where
// windows have their rows the first ten.
TEST(PredictionLayers, StandWhereTheLastLayerHasItsRows) {
  StepRequest request = small_request("cp=3,strategy=ring,balance=head_tail,window_balance=contiguous");
  request.workload.seq_len = 28;
  request.model.prediction_layers = 2;
  for (const bool window_last : {true, false}) {
    const LayerKind full, window{4, {}, false, Mixer::attention, true};
    set_layers(request.model, {full, window, window_last ? window : full});
    const std::vector<Plan> plans = plans_of_all_ranks(request, StepPart::micro_batch);
    check(plans);
    const Plan& plan = plans.front();
    EXPECT_EQ(find_buffer(plan, "working/tokens")->numel, 9);
    const std::int64_t rows = window_last ? 10 : 9;
    for (const char* name : {"working/targets", "working/tokens 1 ahead", "working/losses 2 ahead"})
      EXPECT_EQ(find_buffer(plan, name)->numel, rows) << name;
    EXPECT_EQ(find_buffer(plan, "activations/embedded")->numel, rows * request.model.hidden);
    // Nothing is moved for them.
    EXPECT_EQ(count(plan, "rows to the next home"), window_last ? 1 : 2);
    EXPECT_EQ(count(plan, "gradients of rows to the home before"), window_last ? 1 : 2);
  }
}

// Of three losses that write one gradient the first overwrites it and the others add; the rows that the model
// and each depth hand on have gradients of two uses, but for those of the deepest.
TEST(PredictionLayers, AddUpTheGradientsOfWhatIsShared) {
  for (const bool tied : {false, true}) {
    StepRequest request = predicting("tp=1", 2);
    request.model.tied_embeddings = tied;
    request.workload.gradient_dtype = DType::bf16, request.workload.dtype = DType::f32;  // cannot add at once
    const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
    std::vector<bool> adds, adds_rows;
    for (const Step* step : all_steps(plan)) {
      if (step->label == "head, wgrad")
        adds.push_back(std::get<MatMul>(std::get<Kernel>(step->work)).accumulate);
      if (step->label == "final norm backward")
        adds_rows.push_back(!std::get<RowKernel>(std::get<Kernel>(step->work)).updates.empty());
    }
    // A tied table's gradient is one sum; else each use of the head is reduced by itself.
    EXPECT_THAT(adds, tied ? ElementsAre(false, true, true) : ElementsAre(false, false, false));
    EXPECT_THAT(adds_rows, ElementsAre(false, true, true));
    EXPECT_EQ(count(plan, "embed backward"), 3);
    EXPECT_EQ(count(plan, "no d embedding yet"), tied ? 0 : 3);
    EXPECT_EQ(count(plan, "no d final norm yet"), tied ? 0 : 2);
  }
}

// The units of a layer like them: the same slots in turn, whoever had them before.
TEST(PredictionLayers, AreGatheredAndReducedAsLayersAre) {
  StepRequest request = small_request("dp_shard=2");
  request.model.layers = 3, request.model.prediction_layers = 3;
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
  const LocalSizes sizes = local_sizes(request.model, request.workload, request.layout);
  const auto pieces = [&](std::string_view buffer, std::string_view label, std::int64_t piece) {
    std::vector<std::int64_t> found;
    for (const StepRef& ref : steps_of(plan)) {
      if (ref.step->label != label) continue;
      for (const Access& access : accesses(ref.step->work)) {
        if (plan.buffers[idx(access.view->buffer)].name != buffer) continue;
        for (std::int64_t i = 0; i < ref.count; ++i) found.push_back(offset_at(*access.view, i) / piece);
      }
    }
    return found;
  };
  const std::int64_t layer = sizes.layer[LayerParts{}], own = sizes.prediction;
  EXPECT_EQ(own, 3 * 32 + 2 * 32 * 32);
  EXPECT_THAT(pieces("parameters/layers", "cast shard", layer / 2),
              ElementsAre(0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0));
  EXPECT_THAT(pieces("gradients/layers", "add gradients", layer / 2), ElementsAre(5, 4, 3, 2, 1, 0));
  // Neighbours in time never share a slot.
  EXPECT_THAT(pieces("unsharded/layers", "cast shard", layer),
              ElementsAre(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_THAT(pieces("parameters/prediction", "cast shard", own / 2), ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(pieces("gradients/prediction", "add gradients", own / 2), ElementsAre(2, 1, 0));
  // Table and head for each use.
  EXPECT_THAT(pieces("parameters/embedding", "cast shard", 50 * 32 / 2), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(pieces("gradients/embedding", "add gradients", 50 * 32 / 2), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(pieces("gradients/head", "add gradients", (50 * 32 + 32) / 2), ElementsAre(0, 0, 0, 0));
}

// What all tp ranks hold alike has a gradient of each rank's rows: layer by layer, or once a step where
// products add to whole gradients. Where rows are not split, each rank has seen all of them.
TEST(PredictionLayers, AddUpOverTpRanksWhatEachHasOfItsRows) {
  const auto summed = [](const char* layout, StepPart part) {
    const Plan plan = step_plan(predicting(layout, 2), part, 0, 0);
    std::int64_t numel = 0;
    for (const Step* step : all_steps(plan)) {
      if (step->label != "add up d prediction") continue;
      const AllReduce& sum = std::get<AllReduce>(std::get<Collective>(step->work));
      EXPECT_EQ(plan.groups[idx(sum.group)].name, "tp") << layout;
      numel += sum.in.numel();
    }
    return numel;
  };
  constexpr std::int64_t kHidden = 32, kOwn = 3 * kHidden + 2 * kHidden * kHidden;
  EXPECT_EQ(summed("tp=2,dp_shard=2", StepPart::micro_batch), 2 * kOwn);
  EXPECT_EQ(summed("tp=2,dp_shard=2", StepPart::update), 0);
  EXPECT_EQ(summed("tp=2", StepPart::micro_batch), 0);
  EXPECT_EQ(summed("tp=2", StepPart::update), 2 * kOwn);
  for (const StepPart part : {StepPart::micro_batch, StepPart::update}) {
    EXPECT_EQ(summed("tp=2,dp_shard=2,sequence_parallel=no", part), 0);
    EXPECT_EQ(summed("tp=2,sequence_parallel=no", part), 0);
  }
}

// ---- stages ----

TEST(PredictionLayers, StandOnTheLastStageBesideACopyOfTheTable) {
  for (const bool tied : {false, true}) {
    StepRequest request = predicting("pp=3,dp_shard=2", 1);
    request.model.tied_embeddings = tied;
    const auto plan_of = [&](StepPart part, int stage) { return step_plan(request, part, stage, 2 * stage); };
    for (const int stage : {0, 1}) {
      EXPECT_EQ(count(plan_of(StepPart::forward, stage), "join"), 0);
      EXPECT_EQ(find_buffer(plan_of(StepPart::update, stage), "parameters/prediction"), nullptr);
    }
    const Plan forward = plan_of(StepPart::forward, 2), backward = plan_of(StepPart::backward, 2);
    EXPECT_EQ(count(forward, "join"), 1);
    EXPECT_EQ(count(forward, "join, wgrad"), 1);
    EXPECT_EQ(count(forward, "embed backward"), 1);
    EXPECT_EQ(count(backward, "embed backward"), 0);
    EXPECT_EQ(count(backward, "out projection, dgrad"), 1);  // of the model's layer alone
    // Both ends add up what they have of the table's gradient.
    const std::int64_t table = std::int64_t{50} * 32;
    for (const int stage : {0, 2}) {
      const Plan update = plan_of(StepPart::update, stage);
      std::int64_t summed = 0;
      for (const Step* step : all_steps(update)) {
        if (step->label == "add up tied tables")
          summed += std::get<AllReduce>(std::get<Collective>(step->work)).in.numel();
      }
      EXPECT_EQ(summed, table) << stage;
      const bool own_table = stage == 0 || !tied;
      EXPECT_EQ(find_buffer(update, "parameters/embedding") != nullptr, own_table) << stage << tied;
    }
  }
}

TEST(PredictionLayers, SendGradientsToTheHostOnce) {
  StepRequest request = predicting("dp_shard=2", 2);
  request.workload.optimizer = parse_optimizer("adamw:offload");
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
  // Embedding, head, three layers, two and their experts, two predictions and what is their own.
  EXPECT_EQ(count(plan, "gradients to the host"), 1 + 1 + 3 + 2 + 2 * 3);
}

TEST(PredictionLayers, AreOfTrainingAlone) {
  StepRequest request = predicting("tp=1", 1);
  request.workload.phase = Phase::prefill;
  const auto refusal = refuse(request.model, request.workload, request.layout);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason,
            "prefill leaves out the layers that predict further tokens, and prediction_layers is 1");
  EXPECT_EQ(refusal->advice, "plan training, or prediction_layers=0");
  Transformer served = request.model;
  served.prediction_layers = 0;
  EXPECT_EQ(model_flops(request.model, request.workload).total(),
            model_flops(served, request.workload).total());
  request.model.prediction_layers = 9;
  EXPECT_THAT(message_of([&] { validate_model(request.model); }),
              HasSubstr("prediction_layers=9 must be at least 0 and at most 8"));
}

// ---- memory ----

Transformer sized(const std::string& kind) {
  Transformer model;
  model.name = kind, model.hidden = 512, model.layers = 8, model.q_heads = 16, model.kv_heads = 16;
  model.head_dim = 64, model.intermediate = 1024, model.vocab = 4096, model.prediction_layers = 2;
  if (kind == "tied") model.tied_embeddings = true;
  if (kind == "deepseek") {
    model.latent = Latent{192, 128, 32, 48}, model.experts = Experts{8, 2, 768, 256};
    std::vector<LayerKind> layers(8);
    layers[0].dense = layers[1].dense = true;
    set_layers(model, layers);
  }
  return model;
}

// The least memory of a request, without the f32 copies that no plan declares.
Memory least_predicting(const StepRequest& request) {
  MemoryRules rules;
  rules.loss_f32_copies = 0;
  return least_memory_of(request.model, request.workload, request.layout, rules);
}
// Where their loss is at work, prediction layers keep what they have made.
std::int64_t kept_at_loss(const Memory& least, std::int64_t of_loss) {
  return least.activations + least.logits - of_loss;
}

// Terms that last, to the byte: whatever the whole of a step holds, and what is kept of a micro-batch.
TEST(PredictionLayers, NeedTheMemoryThatPlansDeclare) {
  for (const char* kind : {"llama", "tied", "deepseek"}) {
    for (const char* layout :
         {"tp=1", "dp_shard=8", "dp_shard=8,ep=4", "dp_shard=4,zero=1", "dp_shard=4,zero=2",
          "tp=4,dp_shard=2,ep=2", "tp=2,cp=4,dp_shard=2,strategy=ring,ulysses_degree=2,micro_batch=2",
          "tp=2,sequence_parallel=no", "activations=host", "activations=host,tp=2,dp_shard=2"}) {
      for (const char* recompute : {"none", "selective", "full", "every:2"}) {
        StepRequest request{sized(kind), {}, parse_parallel_layout(layout)};
        request.workload.seq_len = 4096, request.workload.global_batch = 8;
        if (!request.model.experts) request.layout.ep = 1;
        request.layout.recompute = parse_recompute(recompute);
        const Rank busiest = busiest_rank(request, 0);
        const Plan step = step_plan(request, StepPart::micro_batch, 0, busiest),
                   update = step_plan(request, StepPart::update, 0, busiest);
        const Memory least = least_predicting(request);
        StepRequest without = request;
        without.model.prediction_layers = 0;
        const std::string where = str(kind, " ", to_string(request.layout));
        const bool whole = request.layout.keeps_whole_parameters() && request.layout.sharding_size() > 1;
        EXPECT_EQ(least.parameters, bytes_named(whole ? update : step, "parameters/")) << where;
        EXPECT_EQ(least.gathered, bytes_of_caller(step, "unsharded/")) << where;
        EXPECT_EQ(least.master, bytes_named(update, "master/")) << where;
        EXPECT_EQ(least.optimizer, bytes_named(update, "optimizer/")) << where;
        // The last layer's output is the loss's; in slots it has the place of an input.
        const std::int64_t x = request.layout.host_activations
                                   ? 0
                                   : request.layout.micro_batch * 4096 / request.layout.cp /
                                         request.layout.row_ranks() * request.model.hidden * 2;
        EXPECT_EQ(kept_at_loss(least, least_predicting(without).logits),
                  bytes_named(step, "activations/") - x)
            << where;
      }
    }
  }
}

// The last stage needs most here: it has as many layers as the first one, and what stands behind them.
TEST(PredictionLayers, AreInTheMemoryOfTheLastStage) {
  for (const char* kind : {"llama", "tied", "deepseek"}) {
    StepRequest request{sized(kind), {}, parse_parallel_layout("pp=2,dp_shard=2,recompute=full")};
    request.workload.seq_len = 512, request.workload.global_batch = 8;
    if (request.model.experts) request.model.experts->count = 4;
    const Plan forward = step_plan(request, StepPart::forward, 1, 2),
               update = step_plan(request, StepPart::update, 1, 2);
    const Memory least = least_predicting(request);
    EXPECT_EQ(least.optimizer, bytes_named(update, "optimizer/")) << kind;
    EXPECT_EQ(least.parameters, bytes_named(update, "parameters/")) << kind;
    EXPECT_EQ(least.gathered, bytes_of_caller(update, "unsharded/")) << kind;
    // Logits, their gradient, and the rows under the head; the output of the last layer is the loss's.
    const std::int64_t x = request.workload.seq_len * request.model.hidden * 2,
                       of_loss = request.workload.seq_len * request.model.vocab * 2 * 2 + x;
    // The next rows have a place beside those of the pass at work.
    EXPECT_EQ(kept_at_loss(least, of_loss),
              bytes_named(forward, "activations/") - x + find_buffer(forward, "activations/x")->bytes() - x)
        << kind;
    EXPECT_LE(least.allocated(), memory_of(request, {}).allocated()) << kind;
  }
}

// ---- flops and parameters ----

// A token meets the layer of its kind once more, the matrix of 2 x 64 x 64, and the head.
TEST(PredictionLayers, AreCountedInFlopsAndParameters) {
  Transformer model;
  model.hidden = 64, model.layers = 2, model.q_heads = 4, model.kv_heads = 2, model.head_dim = 16;
  model.intermediate = 96, model.vocab = 100, model.experts = Experts{8, 2, 48, 40};
  set_layers(model, {{{}, {}, true}, {3, {}}});
  Workload workload;
  workload.seq_len = 10, workload.global_batch = 3;
  const ModelFlops without = model_flops(model, workload);
  const ParameterCounts before = parameter_counts(model);
  model.prediction_layers = 2;
  const ModelFlops with = model_flops(model, workload);
  const ParameterCounts after = parameter_counts(model);
  const std::int64_t hidden = 64, attention = 2 * hidden * 64 + 2 * hidden * 32, expert = 3 * hidden * 48,
                     shared = 3 * hidden * 40, router = hidden * 8, join = 2 * hidden * hidden,
                     head = hidden * 100;
  EXPECT_EQ(with.products - without.products,
            6.0 * 30 * 2 * static_cast<double>(attention + 2 * expert + shared + router + join + head));
  // 1, 2 and then 3 keys of the window: 27 pairs.
  EXPECT_EQ(with.attention - without.attention, 3.0 * 4 * 3 * 16 * 4 * 2 * 27);
  EXPECT_EQ(after.prediction, attention + 8 * expert + shared + router + 2 * hidden + join + 3 * hidden);
  EXPECT_EQ(after.total - before.total, 2 * after.prediction);
  EXPECT_EQ(after.active - before.active, 2 * (after.prediction - 6 * expert));
}

}  // namespace
}  // namespace cp::testing
