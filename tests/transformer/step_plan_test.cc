// Plans of whole models: every part of a step, on all ranks together, holds what the checker proves; and its products, pairs and
// bytes are those of the closed formulas.
#include "shared/transformer/step_plan.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "shared/plan/operations.h"
#include "shared/transformer/rank_groups.h"

namespace cp::testing {
namespace {

Transformer small_model() {
  Transformer model;
  model.name = "small";
  model.hidden = 32, model.layers = 3;
  model.q_heads = 4, model.kv_heads = 2, model.head_dim = 8;
  model.intermediate = 48, model.vocab = 50;
  return model;
}

StepRequest small_request(std::string_view layout) {
  StepRequest request{small_model(), {}, parse_parallel_layout(layout)};
  request.workload.seq_len = 24;
  request.workload.global_batch = request.layout.dp() * request.layout.micro_batch;
  return request;
}

// ---- the checker ----

// The plans of all ranks for one part of one turn: of each pipeline rank its first stage.
std::vector<Plan> plans_of_all_ranks(const StepRequest& request, StepPart part) {
  std::vector<Plan> all;
  AttentionPlanCache cache;
  for (int stage = 0; stage < request.layout.pp; ++stage) {
    for (Plan& plan : step_plans(request, part, stage, &cache)) all.push_back(std::move(plan));
  }
  return all;
}

std::vector<StepPart> parts_of(const StepRequest& request) {
  switch (request.workload.phase) {
    case Phase::prefill:
      return {StepPart::prefill};
    case Phase::decode:
      return {StepPart::decode};
    default:
      break;
  }
  if (request.layout.pp == 1) return {StepPart::micro_batch, StepPart::update};
  return {StepPart::forward, StepPart::backward, StepPart::update};
}

void check_all_parts(const StepRequest& request) {
  for (const StepPart part : parts_of(request)) {
    SCOPED_TRACE(name(part));
    try {
      check(plans_of_all_ranks(request, part));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(StepPlans, AreProvedByTheChecker) {
  for (const char* layout : {"tp=1",
                             "tp=2",
                             "tp=4",
                             "dp_shard=2",
                             "dp_replicate=2,dp_shard=2",
                             "cp=2,strategy=ring",
                             "tp=2,cp=2,dp_shard=2,strategy=ring,balance=head_tail",
                             "cp=2,sharding=dp_shard,dp_shard=2",
                             "cp=3,strategy=pass_q,balance=striped:1",
                             "cp=4,strategy=ulysses",
                             "cp=4,strategy=ulysses_ring,balance=head_tail",
                             "cp=2,strategy=all_gather,balance=head_tail_exchange,micro_batch=2",
                             "recompute=full",
                             "recompute=selective,tp=2",
                             "recompute=every:2,tp=2,dp_shard=2",
                             "loss_chunks=5,tp=2",
                             "pp=2",
                             "pp=3,tp=2,recompute=full",
                             "pp=2,dp_shard=2,cp=2,dp_replicate=2",
                             "micro_batch=2,tp=2,cp=2,recompute=selective"}) {
    SCOPED_TRACE(layout);
    check_all_parts(small_request(layout));
  }
}

TEST(StepPlans, OfOtherModelsAreProvedToo) {
  for (const char* layout :
       {"tp=2,cp=2,strategy=ring", "pp=2,tp=4,dp_shard=2", "tp=2,dp_shard=4,recompute=selective"}) {
    SCOPED_TRACE(layout);
    StepRequest request = small_request(layout);
    request.model.tied_embeddings = true;
    check_all_parts(request);
    request.model.qk_norm = true, request.model.qkv_bias = true;
    check_all_parts(request);
    request.workload.gradient_dtype = DType::bf16;
    check_all_parts(request);
    request.workload.dtype = DType::f32, request.workload.gradient_dtype = DType::f32;
    request.workload.optimizer = parse_optimizer("adamw:offload");
    check_all_parts(request);
  }
  for (const char* layout :
       {"tp=2", "ep=2,dp_shard=2,tp=2", "ep=4,dp_shard=2,cp=2,strategy=ring,recompute=full",
        "ep=2,dp_shard=4,pp=3", "ep=2,dp_shard=4,cp=2,sharding=dp_shard,recompute=selective",
        "tp=2,dp_shard=2,order=tp-dp-cp-pp,cp=2,ep=2"}) {
    SCOPED_TRACE(layout);
    StepRequest request = small_request(layout);
    request.model.experts = Experts{4, 2, 24};
    request.workload.expert_imbalance = 1.3;
    check_all_parts(request);
  }
}

TEST(StepPlans, OfServingAreProvedToo) {
  for (const char* layout :
       {"tp=1", "tp=2,micro_batch=3", "cp=2,strategy=ring", "cp=3,tp=2,strategy=pass_q,micro_batch=2",
        "pp=2,tp=2", "cp=2,strategy=all_gather,dp_replicate=2"}) {
    SCOPED_TRACE(layout);
    StepRequest request = small_request(layout);
    request.workload.phase = Phase::prefill;
    check_all_parts(request);
    request.workload.cached = 11;
    check_all_parts(request);
    request.workload.phase = Phase::decode;
    request.workload.cached = 23, request.workload.new_tokens = 1;
    check_all_parts(request);
  }
}

}  // namespace
}  // namespace cp::testing
