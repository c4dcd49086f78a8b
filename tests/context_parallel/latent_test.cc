// Attention whose keys and values are made of latent rows: plans of both ways to move them, on every
// strategy.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/sharding.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/ledger/expected_traffic.h"
#include "sim/proof/run/attention_run.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using Keys = Strategy::Keys;

AttentionProblem some_latent(std::int64_t length = 29) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = length;
  problem.q_heads = problem.kv_heads = 4;
  problem.head_dim = 6, problem.v_head_dim = 4;
  problem.causal = true;
  problem.latent = {.rank = 8, .rope_dim = 2};
  return problem;
}

// Any of the three, if the strategy allows it.
Strategy with_any_keys(const AttentionProblem& problem, int cp, Strategy strategy) {
  strategy.keys = *rc::gen::element(Keys::fewer_bytes, Keys::heads, Keys::latent);
  return refuse(problem, cp, strategy) ? refuse(problem, cp, strategy)->strategy : strategy;
}

AttentionRequest any_request() {
  const AttentionProblem problem = *any_latent_problem();
  const int cp = pick("cp", rc::gen::inRange(1, 7));
  const Strategy strategy = with_any_keys(problem, cp, *any_strategy(problem, cp));
  AttentionRequest request{problem, first_ranks(cp), strategy, true, *any_options()};
  Gradients& wanted = request.options.gradients;
  wanted.dv = wanted.dk = wanted.dk || !wanted.dq;
  RC_LOG() << to_string(problem) << " " << name(problem.format) << " documents " << documents_text(problem)
           << " on " << cp << " by " << to_string(strategy) << ", gradients " << to_string(wanted) << "\n";
  return request;
}

std::vector<std::string> callers_buffers(const Plan& plan) {
  std::vector<std::string> names;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::temporary) names.push_back(buffer.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

RC_GTEST_PROP(LatentRows, EveryStrategyEqualsOneDevice, ()) {
  const AttentionRequest request = any_request();
  const sim::AttentionTestData data(request.problem, pick("seed", rc::gen::inRange<std::uint64_t>(0, 1000)));
  sim::AttentionRunOptions options;
  options.backward = true;
  if (pick("one of three for a GPU", rc::gen::inRange(0, 3)) == 0) options.target = gpu_target("sm90");
  RC_PRE(!refuse(request.problem, static_cast<int>(request.ranks.size()), request.strategy, options.target));
  RC_ASSERT(findings(sim::run_attention(data, request, options)) == "");
}

// Three keys' worth of 9 rows in 16 bits end between two f32 of the same arena: the oracle of memory allows
// the 2 bytes that are lost there.
TEST(LatentRows, OddRowsMayLeaveAGapBeforeF32) {
  AttentionRequest request{{}, first_ranks(3), {}, true, {}};
  AttentionProblem& problem = request.problem;
  problem.batch = 3, problem.q_len = problem.kv_len = 7, problem.q_heads = problem.kv_heads = 1;
  problem.head_dim = 3, problem.v_head_dim = 2, problem.dtype = DType::bf16;
  problem.latent.rank = problem.latent.rope_dim = 1;
  request.options.gradients = {true, false, false};
  sim::AttentionRunOptions options;
  options.backward = true;
  EXPECT_EQ(findings(sim::run_attention(sim::AttentionTestData(problem, 0), request, options)), "");
}

// The planner counts blocks on their trips, and the oracle what each rank receives.
RC_GTEST_PROP(LatentRows, WhatTravelsIsWhatTheOracleFindsLess, ()) {
  AttentionRequest request = any_request();
  request.keep_for_backward = pick("keeps", rc::gen::arbitrary<bool>());
  RC_ASSERT(name(travelling_keys(request)) == name(sim::keys_of_fewest_bytes(request)));
}

TEST(LatentRows, AreWhatTheForwardPassKeepsWhereTheyTravel) {
  AttentionRequest request{some_latent(), first_ranks(4), whole_ulysses(4), true, {}};
  request.strategy.keys = Keys::latent;
  const auto plan = [&](AttentionPass pass) { return attention_plan(request, pass, 1); };
  EXPECT_EQ(callers_buffers(plan(AttentionPass::forward)),
            (std::vector<std::string>{"kv_up", "latent", "lse", "out", "q", "saved_latent", "saved_lse",
                                      "saved_out", "saved_q"}));
  EXPECT_EQ(callers_buffers(plan(AttentionPass::backward)),
            (std::vector<std::string>{"dkv_up", "dlatent", "dout", "dq", "kv_up", "saved_latent", "saved_lse",
                                      "saved_out", "saved_q"}));
  request.strategy = {};
  request.strategy.keys = Keys::heads;
  EXPECT_EQ(
      callers_buffers(plan(AttentionPass::backward)),
      (std::vector<std::string>{"dkv_up", "dlatent", "dout", "dq", "kv_up", "latent", "lse", "out", "q"}));
}

// Ten elements travel for a row, or (6 + 4) of each of four heads; in two heads that would be twice as many.
TEST(LatentRows, TravelWhereTheyAreFewer) {
  AttentionRequest request{some_latent(), first_ranks(4), {}, true, {}};
  EXPECT_EQ(travelling_keys(request), Keys::latent);
  request.problem.latent.rank = 37;
  EXPECT_EQ(travelling_keys(request), Keys::latent);
  request.problem.latent.rank = 38;  // 40 elements either way
  EXPECT_EQ(travelling_keys(request), Keys::heads);
  // Each rank of Ulysses gets one head's ten elements, or the whole row.
  request.problem.latent.rank = 8, request.strategy = whole_ulysses(4);
  EXPECT_EQ(travelling_keys(request), Keys::heads);
  request.problem.latent.rank = 7;
  EXPECT_EQ(travelling_keys(request), Keys::latent);
  // Queries travel, and keys stay.
  request.strategy = {}, request.strategy.core = Core::pass_q;
  EXPECT_EQ(travelling_keys(request), Keys::heads);
}

// In 16 bits heads' gradients come back from Ulysses final, and rows' in parts of twice the size.
TEST(LatentRows, TravelForwardAloneWhereTheirGradientsCostMore) {
  AttentionRequest request{some_latent(), first_ranks(4), whole_ulysses(4), true, {}};
  request.problem.dtype = DType::bf16;
  request.problem.latent.rank = 6;  // 8 elements instead of 10: 16 + 32 bytes instead of 20 + 20
  EXPECT_EQ(travelling_keys(request), Keys::heads);
  request.keep_for_backward = false;
  EXPECT_EQ(travelling_keys(request), Keys::latent);
}

TEST(LatentRows, AreRefusedByNameWhereTheyCannotTravel) {
  const AttentionProblem problem = some_latent();
  const auto reason = [](const AttentionProblem& p, const Strategy& strategy) {
    const auto refusal = refuse(p, 4, strategy);
    if (!refusal) return std::string();
    EXPECT_FALSE(refuse(refusal->problem, 4, refusal->strategy)) << refusal->reason;
    return refusal->reason;
  };
  Strategy strategy = whole_ulysses(2);
  strategy.keys = Keys::latent, strategy.pieces = 2;
  EXPECT_EQ(reason(problem, strategy),
            "keys=latent sends rows that all heads share, and pieces=2 cuts what travels by heads; use "
            "keys=heads, or pieces=1");
  strategy = {}, strategy.core = Core::pass_q, strategy.keys = Keys::latent;
  EXPECT_EQ(
      reason(problem, strategy),
      "keys=latent sends rows of keys, and with pass_q queries travel and keys stay; use keys=heads, or a "
      "ring");
  strategy.keys = Keys::heads;
  EXPECT_EQ(reason(problem, strategy), "");
  AttentionProblem given = problem;
  given.latent = {};
  EXPECT_EQ(
      reason(given, strategy),
      "keys=heads chooses between heads and latent rows, and the problem has no latent rows; leave keys "
      "out, or give the problem a latent rank");
}

std::string error_of(const AttentionProblem& problem) {
  try {
    validate_problem(problem);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(LatentRows, OfSizesThatMakeNoSenseAreRefused) {
  AttentionProblem problem = some_latent();
  problem.latent.rope_dim = 6;
  EXPECT_EQ(error_of(problem),
            "rope_dim=6 leaves nothing of head_dim=6 to expand from latent rows; use rope_dim=5 or less, or "
            "head_dim=7 or more");
  problem.latent = {.rank = 0, .rope_dim = 2};
  EXPECT_EQ(
      error_of(problem),
      "rope_dim=2 is a part of latent rows, and latent=0 has none; use, for example, latent=512, or leave "
      "rope_dim out");
  problem.latent = {.rank = -1, .rope_dim = 0};
  EXPECT_EQ(error_of(problem), "latent=-1; use at least 0");
}

TEST(LatentRows, HaveGradientsOfKeysAndValuesTogether) {
  AttentionRequest request{some_latent(), first_ranks(2), {}, true, {}};
  request.options.gradients = {true, true, false};
  EXPECT_THROW(attention_plan(request, AttentionPass::backward, 0), InvalidInput);
  request.options.gradients = {true, false, false};
  EXPECT_EQ(callers_buffers(attention_plan(request, AttentionPass::backward, 0)),
            (std::vector<std::string>{"dout", "dq", "kv_up", "latent", "lse", "out", "q"}));
}

// ---- absorbed queries ----

AttentionProblem absorbed(AttentionProblem problem) {
  problem.latent.absorbed = true;
  problem.kv_heads = 1, problem.head_dim = problem.latent.dim(), problem.v_head_dim = problem.latent.rank;
  return problem;
}

// The elements [0, dim) of the rank's rows of [batch, length, row], as a rank has them at home.
std::vector<float> at_home(const std::vector<float>& all, const AttentionProblem& problem,
                           const IndexSet& rows, std::int64_t row, std::int64_t dim) {
  const auto length = static_cast<std::int64_t>(all.size()) / problem.batch / row;
  std::vector<float> own;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t i = 0; i < size(rows); ++i) {
      const auto begin = all.begin() + (b * length + to_global(rows, i)) * row;
      own.insert(own.end(), begin, begin + dim);
    }
  }
  return own;
}

// `out` of all ranks. Latent rows, or the keys and values that they are.
std::vector<std::vector<float>> outputs_of(const AttentionRequest& request, const std::vector<float>& q,
                                           const std::vector<float>& latent) {
  const AttentionProblem& problem = request.problem;
  const std::vector<Plan> plans = attention_plans(request, AttentionPass::forward);
  const AttentionSharding sharding(problem, static_cast<int>(plans.size()), request.strategy);
  const std::int64_t row = problem.head_dim;
  std::vector<std::vector<float>> outputs(plans.size());
  sim::Fabric fabric(static_cast<int>(plans.size()));
  fabric.run([&](Rank rank, Device& device) {
    const Plan& plan = plans[idx(rank)];
    const IndexSet &queries = sharding.home_q(rank).rows, &keys = sharding.home_kv(rank).rows;
    std::vector<std::vector<float>> buffers(plan.buffers.size());
    std::vector<Binding> bindings;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& buffer = plan.buffers[i];
      if (buffer.kind == BufferKind::temporary) continue;
      if (buffer.name == "q")
        buffers[i] = at_home(q, problem, queries, problem.q_heads * row, problem.q_heads * row);
      if (buffer.name == "latent" || buffer.name == "k")
        buffers[i] = at_home(latent, problem, keys, row, row);
      if (buffer.name == "v") buffers[i] = at_home(latent, problem, keys, row, problem.v_head_dim);
      buffers[i].resize(idx(buffer.numel));
      bindings.push_back({static_cast<BufferId>(i), buffers[i].data(), buffer.bytes()});
    }
    execute(plan, device, bindings);
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      if (plan.buffers[i].name == "out") outputs[idx(rank)] = buffers[i];
    }
  });
  return outputs;
}

// All heads share one key, the row, and one value, its first elements: what one gets for these as keys and
// values of one head, bit for bit.
RC_GTEST_PROP(LatentRows, AbsorbedAreKeysAndValuesOfOneHead, ()) {
  AttentionProblem problem = *any_latent_problem();
  problem.dtype = DType::f32, problem.sinks = false, problem.dropout = {},
  problem.format = TensorFormat::bshd;
  problem = absorbed(problem);
  const int cp = pick("cp", rc::gen::inRange(1, 6));
  Strategy strategy = *any_strategy(problem, cp);
  strategy.keys = Keys::fewer_bytes;
  AttentionRequest request{problem, first_ranks(cp), strategy, false, {}};
  RC_LOG() << to_string(problem) << " on " << cp << " by " << to_string(strategy) << "\n";
  AttentionRequest given = request;
  given.problem.latent = {};
  RC_PRE(!refuse(problem, cp, strategy) && !refuse(given.problem, cp, strategy));
  std::mt19937 random(pick("seed", rc::gen::inRange<unsigned>(0, 1000)));
  std::normal_distribution<float> normal;
  const auto values = [&](std::int64_t numel) {
    std::vector<float> all(idx(numel));
    for (float& value : all) value = normal(random);
    return all;
  };
  const std::vector<float> q = values(problem.batch * problem.q_len * problem.q_heads * problem.head_dim),
                           latent = values(problem.batch * problem.kv_len * problem.head_dim);
  RC_ASSERT(outputs_of(request, q, latent) == outputs_of(given, q, latent));
}

TEST(LatentRows, AbsorbedTravelOnceForKeysAndValues) {
  AttentionRequest request{absorbed(some_latent()), first_ranks(4), {}, false, {}};
  EXPECT_EQ(travelling_keys(request), Keys::latent);
  EXPECT_EQ(callers_buffers(attention_plan(request, AttentionPass::forward, 1)),
            (std::vector<std::string>{"latent", "lse", "out", "q"}));
  request.strategy.core = Core::pass_q;
  EXPECT_EQ(travelling_keys(request), Keys::heads);
  EXPECT_EQ(
      message_of([&] { attention_plan(request, AttentionPass::backward, 1); }),
      "latent rows of 8+2 with absorbed queries have no backward pass, since only decoding absorbs them; "
      "leave the backward pass out, or let the plan expand the rows (absorbed=false)");
  AttentionProblem problem = request.problem;
  problem.kv_heads = 2;
  EXPECT_EQ(
      error_of(problem),
      "absorbed queries meet latent rows of 8+2 as one kv head, with keys of 10 and values of 8, and not 2 "
      "of 10/8; use kv_heads=1, head_dim=10 and v_head_dim=8");
}

}  // namespace
}  // namespace cp::testing
