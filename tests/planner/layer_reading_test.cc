#include "sim/planner/search/layer_reading.h"

#include <cmath>
#include <cstdint>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/transformer/layer_plan.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/issue_time.h"
#include "sim/cost/timeline/rank_replay.h"
#include "tests/planner/questions.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

// A layer of the kind alone, on the layout's tp and ep ranks.
LayerPlan plan_of(const PlanQuestion& question, const LayerKind& kind, LayerPass pass,
                  const ParallelLayout& layout = {}) {
  StepRequest request{question.model, question.workload, layout};
  set_layers(request.model, {kind});
  request.model.layers = 1;
  forget_unused_mixers(request.model);
  request.workload.seq_len = 1, request.layout.micro_batch = 4096;
  MixerPlanCache mixers(2);
  return layer_plan(request, LatentUse::nothing, pass, mixers);
}

double no_transfer(const Collective&, const Plan&) { return 0; }

// Of kernels that take what a launch does, as they do on a GPU that is fast in all else: how many follow one
// another, and how many of them are the mixer's.
struct Launches {
  double of_layer = 0, of_mixer = 0;
};
Launches launches_of(const PlanQuestion& question, const LayerKind& kind, LayerPass pass) {
  Cluster cluster = question.cluster;
  cluster.gpu.tflops_16 = cluster.gpu.tflops_f32 = cluster.gpu.hbm_gbps = 1e12;
  cluster.rates = {}, cluster.matmul_efficiency = {}, cluster.memory_efficiency = {};
  const KernelCost kernels(cluster, question.software);
  const LayerReading reading = read_layer(plan_of(question, kind, pass), kernels, no_transfer);
  return {std::round(reading.whole.ns / (cluster.gpu.kernel_launch_us * 1e3)),
          reading.forward_launches + reading.backward_launches};
}

// By hand. Attention: norm, qkv, rotary, attention, projection out, residual sum. MLP: norm, gate and up,
// activation, down, residual sum. Backward each product has two; attention has delta, and a norm no sum.
TEST(LayerReading, HasTheKernelsOfTheLayer) {
  PlanQuestion question = testing::small_question(8, 4096);
  question.model.recurrence = Recurrence{RecurrenceRule::delta, 8, 8, 64, 32, 4, false};
  question.software.fused_rows = false;
  const LayerKind attention, recurrence{{}, {}, false, Mixer::recurrence, true},
      mlp{{}, {}, false, Mixer::none, true};
  const auto expect = [&](const LayerKind& kind, LayerPass pass, double beside, double of_mixer) {
    const Launches launches = launches_of(question, kind, pass);
    EXPECT_EQ(launches.of_layer, beside);
    EXPECT_EQ(launches.of_mixer, of_mixer);
  };
  expect(attention, LayerPass::forward, 5 + 5, 1);
  expect(attention, LayerPass::backward, 6 + 6, 2);
  // Norm, projection, convolution, decay and beta, norm and gates, projection out, residual sum.
  expect(recurrence, LayerPass::forward, 7 + 5, 1);
  expect(recurrence, LayerPass::backward, 8 + 6, 1);
  expect(mlp, LayerPass::forward, 5, 0);
  expect(mlp, LayerPass::backward, 6, 0);
  question.software.fused_rows = true;  // sums ride in the norms
  expect(attention, LayerPass::forward, 4 + 4, 1);
  expect(mlp, LayerPass::forward, 4, 0);
}

// What is read of an end of the layers is what a replay of its plan takes, chunks of the loss and all.
RC_GTEST_PROP(LayerReading, IsWhatAnEndTakes, ()) {
  const PlanQuestion question = testing::small_question(8);
  StepRequest request{question.model, question.workload, {}};
  request.model.layers = 1;
  set_layers(request.model, {LayerKind{}});
  request.workload.seq_len = 1;
  ParallelLayout& layout = request.layout;
  layout.micro_batch = pick("rows", rc::gen::element(1000, 4096));
  layout.tp = pick("tp", rc::gen::element(1, 2, 4));
  layout.sequence_parallel = pick("sequence parallel", rc::gen::arbitrary<bool>());
  layout.loss_chunks = pick("chunks", rc::gen::element(1, 2, 3, 16));
  const auto part = pick("part", rc::gen::element(EndPart::embedding, EndPart::embedding_backward,
                                                  EndPart::head, EndPart::prediction));
  request.model.prediction_layers = part == EndPart::prediction ? 1 : 0;
  const LayerPlan end = end_plan(request, part);
  const SoftwareProfile software = without_host(question.software);
  const CollectiveSettings settings = settings_of({}, software);
  const LayerReading reading = read_layer(end, KernelCost(question.cluster, software),
                                          [&](const Collective& transfer, const Plan& plan) {
                                            return collective_ns(transfer, plan, question.cluster, settings);
                                          });
  const double ns = replay_rank(end.plan, question.cluster, software).time_ns;
  RC_LOG() << reading.whole.ns << " of " << ns << "\n";
  RC_ASSERT(reading.whole.ns <= ns * (1 + 1e-9));
  RC_ASSERT(reading.whole.ns >= ns * 0.999);
}

// What is read of a layer is what a replay of its plan takes, but for what its mixer takes, and for the sums
// of gradients over tp ranks, which no kernel of the layer waits for.
RC_GTEST_PROP(LayerReading, IsWhatTheLayerTakes, ()) {
  PlanQuestion question = testing::small_question(16);
  ParallelLayout layout;
  layout.tp = pick("tp", rc::gen::element(1, 2, 4));
  layout.sequence_parallel = pick("sequence parallel", rc::gen::arbitrary<bool>());
  layout.recompute.kind =
      pick("recompute",
           rc::gen::element(Recompute::Kind::none, Recompute::Kind::selective, Recompute::Kind::full));
  if (pick("experts", rc::gen::arbitrary<bool>())) {
    question.model.experts = Experts{8, 2, 512, pick("shared", rc::gen::element<std::int64_t>(0, 384))};
    layout.ep = layout.dp_shard = pick("ep", rc::gen::element(1, 2, 4));
  } else {
    layout.mlp_chunks = pick("chunks", rc::gen::element(1, 3));
  }
  question.model.norms_behind = pick("norms behind", rc::gen::arbitrary<bool>());
  question.model.gated_attention = pick("gates", rc::gen::arbitrary<bool>());
  LayerKind kind = question.model.kinds.front();
  if (!question.model.norms_behind)
    question.model.parallel_blocks = pick("parallel blocks", rc::gen::arbitrary<bool>());
  if (!question.model.parallel_blocks && pick("alone", rc::gen::arbitrary<bool>())) kind.mixer = Mixer::none;
  const auto pass = pick("pass", rc::gen::element(LayerPass::forward, LayerPass::backward));

  const LayerPlan layer = plan_of(question, kind, pass, layout);
  const Cluster& cluster = question.cluster;
  const SoftwareProfile software = without_host(question.software);
  const KernelCost kernels(cluster, software);
  const CollectiveSettings settings = settings_of({}, software);
  const LayerReading reading = read_layer(layer, kernels, [&](const Collective& transfer, const Plan& plan) {
    return collective_ns(transfer, plan, cluster, settings);
  });
  double mixers_ns = 0;
  const std::vector<StepRef> steps = steps_of(layer.plan);
  for (const MixerSteps& mixer : layer.mixers) {
    for (StepId step = mixer.begin; step < mixer.end; ++step)
      mixers_ns += kernels.ns(std::get<Kernel>(steps[idx(step)].step->work), layer.plan);
  }
  const double ns = replay_rank(layer.plan, cluster, software).time_ns;
  RC_LOG() << reading.whole.ns << " and " << mixers_ns << " of " << ns << "\n";
  RC_ASSERT(reading.whole.ns + mixers_ns <= ns * (1 + 1e-9));
  if (pass == LayerPass::forward || layout.tp == 1) RC_ASSERT(reading.whole.ns + mixers_ns >= ns * 0.999);
  RC_ASSERT(reading.around_ns >= reading.whole.ns);
  RC_ASSERT(reading.chain.ns <= reading.whole.ns);
  // A part takes no longer than the whole.
  for (const LayerReading::MaybeWay& part :
       {reading.from_weights, reading.to_weights, reading.within_weights, reading.from_experts,
        reading.to_experts, reading.within_experts, reading.from_gradients, reading.from_expert_gradients}) {
    if (part) RC_ASSERT(part->ns <= reading.whole.ns);
  }
  const bool has_experts = question.model.experts.has_value();
  RC_ASSERT(reading.from_experts.has_value() == has_experts);
  RC_ASSERT(reading.from_gradients.has_value() == (pass == LayerPass::backward));
}

}  // namespace
}  // namespace cp::sim
