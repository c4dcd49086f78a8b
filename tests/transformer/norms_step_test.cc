// Norms of q and k over all heads, in the steps of models.
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/transformer/least_memory.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/weights.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

StepRequest with_norms(const char* layout, bool of_all_heads) {
  StepRequest request = small_request(layout);
  request.model.qk_norm = true, request.model.qk_norm_of_all_heads = of_all_heads;
  return request;
}

LayerWeights layer_of(const StepRequest& request) {
  return {request.model, local_sizes(request.model, request.workload, request.layout), LayerParts{}};
}

// Bytes that a rank sends, by group and operation.
std::map<std::string, std::int64_t> sent(const Plan& plan) {
  std::map<std::string, std::int64_t> bytes;
  for (const StepRef& ref : steps_of(plan)) {
    const auto* collective = std::get_if<Collective>(&ref.step->work);
    if (collective == nullptr) continue;
    for (const std::int64_t to_one : volume(*collective, plan).sent)
      bytes[str(plan.groups[static_cast<std::size_t>(group_of(*collective))].name, " ",
                operation_name(ref.step->work))] += ref.count * to_one;
  }
  return bytes;
}

std::int64_t runs_of(const Plan& plan, RowOperation operation) {
  std::int64_t count = 0;
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    const auto* rows = kernel == nullptr ? nullptr : std::get_if<RowKernel>(kernel);
    if (rows != nullptr && rows->operation == operation) count += ref.count;
  }
  return count;
}

// 4 heads of q and 2 of k, of 8 elements each; a rank has those of its heads.
TEST(NormsOfAllHeads, HaveAWeightForEachElement) {
  const LayerWeights whole = layer_of(with_norms("tp=1", true)), half = layer_of(with_norms("tp=2", true)),
                     each = layer_of(with_norms("tp=2", false));
  EXPECT_EQ(whole.q_norm.numel(), 32);
  EXPECT_EQ(whole.k_norm.numel(), 16);
  EXPECT_EQ(half.q_norm.numel(), 16);
  EXPECT_EQ(half.k_norm.numel(), 8);
  EXPECT_GE(half.q_norm.begin, half.replicated.back().end());
  EXPECT_EQ(each.q_norm.numel(), 8);
  EXPECT_LE(each.k_norm.end(), each.replicated.back().end());
}

// By hand: two numbers of each of 24 rows, in f32, forward and backward of three layers, and once more where
// layers are computed again. An AllReduce of two ranks sends what it has once.
TEST(NormsOfAllHeads, AddUpSumsOfRowsOverTensorParallelRanks) {
  const std::int64_t layers = 3, once = layers * 24 * 2 * 4;
  for (const char* layout : {"tp=2", "tp=2,sequence_parallel=no", "tp=2,recompute=selective"}) {
    const auto of_all = sent(step_plan(with_norms(layout, true), StepPart::micro_batch, 0, 1)),
               of_each = sent(step_plan(with_norms(layout, false), StepPart::micro_batch, 0, 1));
    EXPECT_EQ(of_all.at("tp all_reduce") - of_each.at("tp all_reduce"), 2 * once) << layout;
  }
  const StepRequest again = with_norms("tp=2,recompute=full", true);
  const Plan plan = step_plan(again, StepPart::micro_batch, 0, 1);
  EXPECT_EQ(runs_of(plan, RowOperation::norm_sums), 6);
  EXPECT_EQ(runs_of(plan, RowOperation::norm_sums_backward), 3);
  EXPECT_EQ(sent(plan).at("tp all_reduce") -
                sent(step_plan(with_norms("tp=2,recompute=full", false), StepPart::micro_batch, 0, 1))
                    .at("tp all_reduce"),
            3 * once);
  // A rank alone has all heads.
  const Plan alone = step_plan(with_norms("tp=1,cp=2,strategy=ring", true), StepPart::micro_batch, 0, 1);
  EXPECT_EQ(runs_of(alone, RowOperation::norm_sums) + runs_of(alone, RowOperation::norm_sums_backward), 0);
  EXPECT_EQ(sent(alone).count("tp all_reduce"), 0U);
}

// The norms of each head are alike on all ranks, and their gradients are sums; those of all heads are a
// rank's own, but for those of k's heads that several ranks share.
TEST(NormsOfAllHeads, HaveGradientsOfTheRanksOwn) {
  const auto update = [](const char* layout, bool of_all_heads) {
    return sent(step_plan(with_norms(layout, of_all_heads), StepPart::update, 0, 1));
  };
  auto of_all = update("tp=2", true), of_each = update("tp=2", false);
  EXPECT_EQ(of_each.at("tp all_reduce") - of_all.at("tp all_reduce"), 3 * (8 + 8) * 4);
  EXPECT_EQ(of_all.count("tp_kv all_reduce"), 0U);
  of_all = update("tp=4", true), of_each = update("tp=4", false);
  EXPECT_EQ(of_all.at("tp_kv all_reduce") - of_each.at("tp_kv all_reduce"), 3 * 8 * 4);
  // Where they are scattered layer by layer, the backward pass adds them up before.
  const auto micro_batch = [](bool of_all_heads) {
    return sent(step_plan(with_norms("tp=4,dp_shard=2", of_all_heads), StepPart::micro_batch, 0, 1));
  };
  EXPECT_EQ(micro_batch(true).at("tp_kv all_reduce") - micro_batch(false).at("tp_kv all_reduce"), 3 * 8 * 2);
}

TEST(NormsOfAllHeads, AddUpSumsInServing) {
  StepRequest request = with_norms("tp=2,cp=2,strategy=ring", true);
  request.workload.phase = Phase::decode, request.workload.cached = 23, request.workload.new_tokens = 1;
  std::int64_t sums = 0;
  for (const Plan& plan : step_plans(request, StepPart::decode, 0))
    sums += runs_of(plan, RowOperation::norm_sums);
  EXPECT_EQ(sums, 3 * 2);  // on the two tp ranks that have the token
}

// Two numbers of each row, in f32, in each of three layers.
TEST(NormsOfAllHeads, KeepTheirSums) {
  const auto kept = [](const char* layout, bool of_all_heads) {
    const StepRequest request = with_norms(layout, of_all_heads);
    return least_memory_of(request.model, request.workload, request.layout, {}).activations;
  };
  EXPECT_EQ(kept("tp=2", true) - kept("tp=2", false), 3 * 24 * 2 * 4);
  EXPECT_EQ(kept("tp=1", true), kept("tp=1", false));
  EXPECT_EQ(kept("tp=2,recompute=full", true), kept("tp=2,recompute=full", false));
}

}  // namespace
}  // namespace cp::testing
