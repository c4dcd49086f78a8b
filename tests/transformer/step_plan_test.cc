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

// ---- any layout of any small model ----

template <class... Values>
auto any_of(Values... values) {
  return *rc::gen::element(values...);
}

Transformer any_model() {
  Transformer model = small_model();
  model.hidden = any_of(32, 40, 64), model.layers = *rc::gen::inRange(2, 6);
  model.kv_heads = any_of(1, 2, 4), model.q_heads = 4;
  model.vocab = any_of(50, 64);
  model.tied_embeddings = any_of(true, false), model.qkv_bias = any_of(true, false);
  model.qk_norm = any_of(true, false);
  if (any_of(0, 0, 1) == 1) model.window = *rc::gen::inRange(1, 30);
  if (any_of(0, 0, 1) == 1) model.experts = Experts{4, any_of(1, 2), 24};
  return model;
}

ParallelLayout any_layout(const Transformer& model) {
  ParallelLayout layout;
  layout.dp_replicate = any_of(1, 1, 2), layout.dp_shard = any_of(1, 2);
  layout.tp = any_of(1, 1, 2, 4), layout.cp = any_of(1, 2, 3, 4), layout.pp = any_of(1, 1, 2);
  if (model.experts) layout.ep = any_of(1, 2, 4);
  layout.micro_batch = any_of(1, 2), layout.loss_chunks = any_of(1, 1, 2, 3, 4);
  layout.order = *rc::gen::elementOf(axis_orders());
  layout.sharding =
      layout.cp > 1 && any_of(true, false) ? ShardingGroup::dp_shard : ShardingGroup::dp_shard_cp;
  layout.recompute =
      any_of(Recompute{}, Recompute{Recompute::Kind::selective, 1}, Recompute{Recompute::Kind::full, 1},
             Recompute{Recompute::Kind::every, 2}, Recompute{Recompute::Kind::every, 3});
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64, problem.q_heads = 4;
  if (layout.cp > 1) layout.strategy = *rc::gen::elementOf(standard_strategies(problem, layout.cp));
  return layout;
}

// One that is legal.
StepRequest any_request() {
  StepRequest request{any_model(), {}, {}};
  request.layout = any_layout(request.model);
  Workload& workload = request.workload;
  workload.phase = any_of(Phase::training, Phase::training, Phase::prefill, Phase::decode);
  workload.seq_len = *rc::gen::inRange(16, 41);
  if (workload.phase == Phase::prefill) workload.cached = any_of(0, 5);
  if (workload.phase == Phase::decode) workload.cached = workload.seq_len - 1, workload.new_tokens = 1;
  if (workload.phase != Phase::training) {
    request.layout.recompute = {}, request.layout.loss_chunks = 1, request.layout.dp_shard = 1;
    workload.kv_dtype = any_of(DType::bf16, DType::bf16, DType::f16);
  }
  workload.global_batch = request.layout.dp() * request.layout.micro_batch;
  workload.dtype = any_of(DType::bf16, DType::bf16, DType::f32);
  workload.gradient_dtype = any_of(DType::f32, DType::bf16);
  workload.optimizer = parse_optimizer(any_of("adamw", "adamw:offload", "sgd"));
  workload.expert_imbalance = any_of(1.0, 1.3);
  RC_PRE(!refuse(request.model, workload, request.layout));
  return request;
}

RC_GTEST_PROP(StepPlans, OfAnyLayoutAreProvedByTheChecker, ()) {
  const StepRequest request = any_request();
  RC_LOG() << to_string(request.layout) << " " << name(request.workload.phase) << " of "
           << request.workload.seq_len << (request.model.experts ? ", experts" : "") << ", "
           << request.model.layers << " layers, kv heads " << request.model.kv_heads << "\n";
  for (const StepPart part : parts_of(request)) {
    try {
      check(plans_of_all_ranks(request, part));
    } catch (const Error& error) {
      RC_FAIL(str(name(part), ": ", error.what()));
    }
  }
}

}  // namespace
}  // namespace cp::testing
