#include "shared/transformer/parallel_layout.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/transformer/short_layout.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

Transformer llama() {
  Transformer model;
  model.hidden = 4096, model.layers = 32, model.q_heads = 32, model.kv_heads = 8, model.head_dim = 128;
  model.intermediate = 14336, model.vocab = 128256;
  return model;
}

Workload training(std::int64_t batch = 16) {
  Workload workload;
  workload.seq_len = 131072, workload.global_batch = batch;
  return workload;
}

ParallelLayout parsed(const char* text, int world = 0) { return parse_parallel_layout(text, world); }

std::string refusal_of(const Transformer& model, const Workload& workload, const char* layout) {
  const auto refusal = refuse(model, workload, parsed(layout));
  return refusal ? refusal->kind + ": " + refusal->text() : "";
}

RC_GTEST_PROP(ParallelLayout, TextReadsBack, ()) {
  ParallelLayout layout;
  const auto degree = [] { return pick("degree", rc::gen::element(1, 2, 4, 8)); };
  layout.dp_replicate = degree(), layout.dp_shard = degree(), layout.tp = degree(), layout.pp = degree();
  layout.cp = degree(), layout.virtual_stages = degree(), layout.loss_chunks = degree();
  layout.micro_batch = degree(), layout.mlp_chunks = degree();
  layout.zero = pick("layout.zero", rc::gen::element(0, 1, 2, 3));
  layout.reshard = pick("layout.reshard", rc::gen::element(0, 1, 2, 16));
  layout.sync_once = pick("layout.sync_once", rc::gen::element(true, false));
  layout.prefetch = pick("layout.prefetch", rc::gen::element(0, 1, 2, kMostPrefetch));
  layout.bucket = pick("layout.bucket", rc::gen::element(1, 2, kMostBucket));
  layout.threshold = pick("layout.threshold", rc::gen::element<std::int64_t>(0, 1, 4096, kMostThreshold));
  layout.sequence_parallel = pick("layout.sequence_parallel", rc::gen::element(true, false));
  layout.host_activations = pick("layout.host_activations", rc::gen::element(true, false));
  layout.order = pick("layout.order", rc::gen::elementOf(axis_orders()));
  layout.recompute =
      pick("layout.recompute",
           rc::gen::element(Recompute{}, Recompute{Recompute::Kind::full, 1},
                            Recompute{Recompute::Kind::selective, 1}, Recompute{Recompute::Kind::every, 3}));
  layout.sharding =
      pick("layout.sharding", rc::gen::element(ShardingGroup::dp_shard, ShardingGroup::dp_shard_cp));
  if (layout.cp > 1) {
    AttentionProblem problem;
    problem.q_len = problem.kv_len = 4096, problem.q_heads = 8;
    layout.strategy = pick("layout.strategy", rc::gen::elementOf(standard_strategies(problem, layout.cp)));
    if (layout.strategy.ulysses_degree == layout.cp) layout.strategy.core = Core::all_gather;
  }
  RC_ASSERT(parse_parallel_layout(to_string(layout)) == layout);
  RC_ASSERT(parse_parallel_layout(short_text(layout)) == layout);
  RC_ASSERT(with_layout_keys(to_string(layout)) == to_string(layout));
  RC_ASSERT(short_text(layout).size() <= to_string(layout).size());
}

TEST(ParallelLayout, InShortKeysThatGoWithoutSayingAreLeftOut) {
  const auto in_short = [](const char* text) { return short_text(parsed(text)); };
  EXPECT_EQ(in_short("cp=16,dp_shard=4,strategy=ring,ulysses_degree=4,balance=head_tail,recompute=selective,"
                     "loss_chunks=4"),
            "cp=16,dp=4,ring,u=4,head_tail,selective,loss=4");
  EXPECT_EQ(in_short("tp=2,cp=4,strategy=ulysses,order=cp-tp-dp-pp,recompute=every:2,micro_batch=2"),
            "tp=2,cp=4,ulysses,cp-tp-dp-pp,mb=2,every:2");
  // What is split otherwise is said, and so is what only looks like another key's value.
  EXPECT_EQ(in_short("cp=4,strategy=ring,rotation=all_gather,balance=contiguous"),
            "cp=4,ring,rotation=all_gather,contiguous");
  EXPECT_EQ(in_short("dp_replicate=2,pp=4,virtual_stages=2,sharding=dp_shard,mlp_chunks=8,activations=host"),
            "dp_replicate=2,pp=4,vpp=2,sharding=dp_shard,mlp=8,activations=host");
  EXPECT_EQ(in_short("tp=1"), "tp=1");
  EXPECT_EQ(with_layout_keys("tp=4, ring ,u = 2,zigzag,8"), "tp=4,strategy=ring,ulysses_degree= 2,zigzag,8");
}

TEST(ParallelLayout, WhatIsLeftOfTheWorldIsSharded) {
  EXPECT_EQ(parsed("tp=4,cp=2", 16).dp_shard, 2);
  EXPECT_EQ(parsed("tp=4,cp=2,dp_shard=1", 8).dp_shard, 1);
  EXPECT_THAT(testing::message_of([] { parsed("tp=4,cp=2,dp_shard=1", 16); }),
              HasSubstr("=8 is not world_size=16; use dp_shard=2"));
  EXPECT_THAT(testing::message_of([] { parsed("tp=3", 16); }),
              HasSubstr("dp_shard cannot be inferred: world_size=16"));
  EXPECT_EQ(parsed("tp=4,cp=2,dp_shard=-1", 16).dp_shard, 2);
  EXPECT_EQ(parsed("tp=4,dp=-1,dp_replicate=2", 16).dp_shard, 2);
  EXPECT_EQ(parsed("tp=4,dp_shard=-1").world(), 4) << "no world is known";
}

// What texts of layouts make of the rules of shared/mesh/parallel_dims.h: the same answer, whichever way the
// degrees come.
struct DegreeRow {
  const char* text;
  int world;
  const char* layout;   // as it is read
  const char* refusal;  // or why not
};

TEST(ParallelLayout, DegreesFollowTheRulesOfParallelDims) {
  const std::vector<DegreeRow> rows = {
      {"tp=4", 8, "tp=4,dp_shard=2", ""},
      {"dp_replicate=2,tp=2,dp_shard=-1", 8, "tp=2,dp_shard=2,dp_replicate=2", ""},
      {"dp=4,cp=8", 32, "cp=8,dp_shard=4,strategy=ring,balance=contiguous", ""},
      {"dp=4,dp_shard=4,tp=2", 8, "tp=2,dp_shard=4", ""},
      {"dp=4,dp_shard=2,tp=2", 8, "", "dp=4 and dp_shard=2 are two names of one degree"},
      {"dp=4,cp=8", 16, "", "dp_replicate*dp_shard*cp*tp*pp=32 is not world_size=16"},
      {"dp_shard=2,tp=2", 8, "", "use dp_shard=4, or -1 to infer it"},
      {"tp=3", 8, "", "use a world_size of 6 or 9, or degrees whose product divides 8"},
      {"ep=4,dp_shard=8", 8, "dp_shard=8,ep=4", ""},  // nested: ep does not multiply the world
      {"tp=2,etp=2,ep=2", 8, "tp=2,dp_shard=4,ep=2", ""},
      {"tp=2,etp=1,ep=2", 8, "",
       "etp=1 with tp=2: a layout splits the products of experts over the tp ranks"},
      {"etp=2,ep=2", 8, "", "etp=2 with tp=1 (not given)"},
      {"pp=2,dp=-1", 8, "dp_shard=4,pp=2", ""},
  };
  for (const DegreeRow& row : rows) {
    SCOPED_TRACE(str(row.text, " on ", row.world));
    if (*row.refusal != 0) {
      EXPECT_THAT(testing::message_of([&] { parsed(row.text, row.world); }), HasSubstr(row.refusal));
    } else {
      EXPECT_EQ(to_string(parsed(row.text, row.world)), row.layout);
    }
  }
}

// A layout and ParallelDims refuse the same degrees of experts, and the same heads.
TEST(ParallelLayout, RefusesTheDegreesThatParallelDimsRefuses) {
  Transformer model = llama();
  model.experts.emplace();
  model.experts->count = 24, model.experts->intermediate = 7168;
  int refused = 0;
  for (const int shard : {1, 2, 3, 4}) {
    for (const int tp : {1, 2, 3, 4}) {
      for (const int ep : {1, 2, 3, 4, 5, 6, 8}) {
        ParallelConfig config;
        config.dp_shard = shard, config.tp = tp, config.ep = ep, config.expert_rule = ExpertRule::nested;
        ParallelLayout layout;
        layout.dp_shard = shard, layout.tp = tp, layout.ep = ep;
        const auto dims = [&] {
          ParallelDims(config, shard * tp)
              .validate_against_model({model.q_heads, model.kv_heads, model.experts->count});
        };
        Workload workload = training(12);
        const auto refusal = refuse(model, workload, layout);
        const std::string reason = testing::message_of(dims);
        EXPECT_EQ(reason == "no error", !refusal.has_value()) << to_string(layout) << ": " << reason;
        if (refusal && refusal->kind != "tp does not divide the heads") {
          EXPECT_THAT(refusal->advice, HasSubstr("use ep="));
        }
        refused += refusal ? 1 : 0;
      }
    }
  }
  EXPECT_GT(refused, 20);
}

// Ulysses' rule of ParallelDims is that of the strategies, where there are heads enough for either.
TEST(ParallelLayout, UlyssesDegreesAreThoseOfParallelDims) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 4096, problem.q_heads = problem.kv_heads = 840, problem.head_dim = 8;
  problem.v_head_dim = 8;
  for (const int cp : {2, 3, 4, 6, 8}) {
    for (int ulysses = 1; ulysses <= 8; ++ulysses) {
      ParallelConfig config;
      config.cp = cp, config.ulysses_degree = ulysses;
      Strategy strategy;
      strategy.ulysses_degree = ulysses;
      if (ulysses == cp) strategy.core = Core::all_gather;
      const std::string reason = testing::message_of([&] { ParallelDims(config, cp); });
      EXPECT_EQ(refuse(problem, cp, strategy).has_value(), reason != "no error")
          << "cp=" << cp << " ulysses_degree=" << ulysses << ": " << reason;
    }
  }
}

TEST(ParallelLayout, OfARunHasItsDegrees) {
  ParallelConfig config;
  config.dp_replicate = 2, config.cp = 4, config.tp = 2, config.ep = 2,
  config.expert_rule = ExpertRule::nested;
  EXPECT_EQ(layout_of(ParallelDims(config, 32)),
            parsed("dp_replicate=2,cp=4,tp=2,ep=2,dp_shard=2,strategy=ulysses", 32));
  config.ulysses_degree = 2;
  EXPECT_EQ(layout_of(ParallelDims(config, 32)),
            parsed("dp_replicate=2,cp=4,tp=2,ep=2,dp_shard=2,strategy=ring,ulysses_degree=2", 32));
  config.etp = 1;
  EXPECT_THAT(testing::message_of([&] { layout_of(ParallelDims(config, 32)); }),
              HasSubstr("etp=1 with tp=2"));
  config.expert_rule = ExpertRule::peer;
  EXPECT_THAT(testing::message_of([&] { layout_of(ParallelDims(config, 32)); }),
              HasSubstr("use ExpertRule::nested with dp_shard=2"));
}

TEST(ParallelLayout, TheMeshKnowsTheAliasesOfTheDegrees) {
  const Mesh mesh = build_mesh(parsed("tp=2,cp=2,dp_shard=2,dp_replicate=2"));
  EXPECT_EQ(mesh.slice("fsdp", 0).size(), 2);
  EXPECT_EQ(mesh.slice("dp", 0).size(), 4);
  EXPECT_EQ(mesh.slice("loss", 0).size(), 8);
}

TEST(ParallelLayout, TextsThatMeanNothing) {
  const auto message = [](const char* text) {
    return testing::message_of([&] { parse_parallel_layout(text); });
  };
  EXPECT_THAT(message("tq=4"),
              HasSubstr("'tq=4' in the layout 'tq=4' is not a key=value that a layout has; its keys are"));
  EXPECT_THAT(message("tp"), HasSubstr("is not a key=value"));
  EXPECT_THAT(message("cp=2,ring,strategy=ring"), HasSubstr("strategy comes twice"));
  EXPECT_THAT(message("tp=2,tp=4"), HasSubstr("tp comes twice"));
  EXPECT_THAT(message("tp=0"), HasSubstr("tp=0 is out of range; use 1 to"));
  EXPECT_THAT(message("cp=2,strategy=rong"), HasSubstr("did you mean ring"));
  EXPECT_THAT(message("recompute=some"), HasSubstr("use none, selective, full, or every:K"));
  EXPECT_THAT(message("order=pp-tp"), HasSubstr("tp-cp-dp-pp, cp-tp-dp-pp"));
}

TEST(ParallelLayout, RefusalsNameTheNearestThatWorks) {
  EXPECT_EQ(refusal_of(llama(), training(), "tp=8,cp=2"), "");
  EXPECT_THAT(refusal_of(llama(), training(), "tp=64"),
              HasSubstr("num_attention_heads=32 is not divisible by tp=64; use tp=32"));
  EXPECT_THAT(refusal_of(llama(), training(), "tp=12"), HasSubstr("use tp=8"));
  EXPECT_EQ(refusal_of(llama(), training(), "tp=16"), "");  // kv heads are replicated
  EXPECT_THAT(refusal_of(llama(), training(), "dp_shard=32"), HasSubstr("use a batch of 32"));
  EXPECT_THAT(refusal_of(llama(), training(), "pp=64"), HasSubstr("use at most 32 stages"));
  EXPECT_THAT(refusal_of(llama(), training(), "ep=2"),
              HasSubstr("ep=2 splits experts, and this model has none"));
  Transformer shared = llama();
  shared.experts = Experts{8, 2, 1024, 96};
  EXPECT_THAT(refusal_of(shared, training(), "tp=64"), HasSubstr("use tp=32"));
  shared.experts->shared = 24;
  EXPECT_THAT(refusal_of(shared, training(), "tp=16"),
              HasSubstr("the width of the shared experts=24 is not divisible by tp=16; use tp=8"));
  EXPECT_THAT(refusal_of(llama(), training(), "virtual_stages=2"), HasSubstr("virtual_stages=1"));
  EXPECT_THAT(refusal_of(llama(), training(18), "pp=4,virtual_stages=2"),
              HasSubstr("18 micro-batches are not a multiple"));
  EXPECT_THAT(refusal_of(llama(), training(), "sharding=dp_shard"), HasSubstr("mean the same with cp=1"));
  EXPECT_THAT(refusal_of(llama(), training(), "recompute=every:64"), HasSubstr("every:2 to every:32"));
  EXPECT_THAT(refusal_of(llama(), training(), "tp=2,cp=64,strategy=ulysses"), HasSubstr("ulysses"));
  EXPECT_THAT(refusal_of(llama(), training(), "cp=2,strategy=ring,window_strategy=need_only"),
              HasSubstr("is of layers with a window or a chunk, and none cuts"));
  EXPECT_THAT(message_of([] { parsed("cp=2,window_strategy=need_onli"); }),
              HasSubstr("the nearest is need_only; same is the strategy of all layers"));
  EXPECT_EQ(parsed("cp=2,window_strategy=same"), parsed("cp=2"));
  Transformer windowed = llama();
  windowed.kinds.front().window = 128;
  EXPECT_EQ(refusal_of(windowed, training(), "cp=2,strategy=ring,window_strategy=need_only"), "");
  EXPECT_THAT(refusal_of(windowed, training(), "cp=2,strategy=need_only,window_strategy=need_only"),
              HasSubstr("window_strategy=need_only is the strategy of all layers; use window_strategy=same"));
  EXPECT_THAT(refusal_of(windowed, training(), "cp=2,strategy=ulysses,window_strategy=need_only"),
              HasSubstr("with ulysses over all ranks there is none"));
  Transformer recurrent = llama();
  recurrent.recurrence = Recurrence{RecurrenceRule::delta, 4, 8, 64, 64, 4, false};
  set_layers(recurrent, {{}, {{}, {}, false, Mixer::recurrence, true}});
  recurrent.layers = 2;
  EXPECT_EQ(refusal_of(recurrent, training(), "tp=4,cp=2,strategy=ring"), "");
  EXPECT_THAT(refusal_of(recurrent, training(), "tp=8"),
              HasSubstr("the 4 key heads of recurrences are not divisible by tp=8; use tp=4"));
  EXPECT_THAT(refusal_of(recurrent, training(), "cp=2,strategy=ring,balance=striped:1"),
              HasSubstr("gives a rank chunks of 1 rows, and a recurrence's convolution needs 3 rows"));
  EXPECT_THAT(refusal_of(recurrent, training(), "tp=4,cp=2,strategy=ring,scan=heads"),
              HasSubstr("use scan=all_gather"));
  Workload serving = training(8);
  serving.phase = Phase::prefill;
  EXPECT_EQ(refusal_of(recurrent, serving, "dp_replicate=8"), "");
  EXPECT_EQ(refusal_of(recurrent, serving, "dp_replicate=4,cp=2,strategy=ring,scan=sequential,micro_batch=2"),
            "");
  serving.phase = Phase::decode, serving.cached = serving.seq_len - 1, serving.new_tokens = 1;
  EXPECT_EQ(refusal_of(recurrent, serving, "dp_replicate=4,cp=2,strategy=ring,scan=heads,micro_batch=2"), "");
  EXPECT_THAT(
      refusal_of(recurrent, serving, "dp_replicate=4,cp=2,strategy=ring,scan=sequential,micro_batch=2"),
      HasSubstr("scan=sequential and all_gather mean the same where a token is written"));
  serving = training(8);
  serving.phase = Phase::prefill;
  EXPECT_EQ(refusal_of(llama(), serving, "dp_replicate=8"), "");
  EXPECT_THAT(refusal_of(llama(), serving, "dp_replicate=2"), HasSubstr("use micro_batch=4"));
  EXPECT_THAT(refusal_of(llama(), serving, "dp_shard=8"), HasSubstr("dp_replicate for replicas"));
}

TEST(ParallelLayout, NeighboursFollowTheOrder) {
  const auto neighbours = [](const char* order, const char* axis) {
    const Mesh mesh = build_mesh(parsed(str("tp=2,cp=2,dp_shard=2,pp=2,order=", order).c_str()));
    return mesh.slice(axis, 0).ranks()[1];
  };
  EXPECT_EQ(neighbours("tp-cp-dp-pp", "tp"), 1);
  EXPECT_EQ(neighbours("tp-cp-dp-pp", "cp"), 2);
  EXPECT_EQ(neighbours("tp-cp-dp-pp", "dp_shard"), 4);
  EXPECT_EQ(neighbours("tp-cp-dp-pp", "pp"), 8);
  EXPECT_EQ(neighbours("cp-tp-dp-pp", "cp"), 1);
  EXPECT_EQ(neighbours("tp-dp-cp-pp", "cp"), 4);
  EXPECT_EQ(neighbours("tp-cp-pp-dp", "pp"), 4);
  EXPECT_EQ(neighbours("tp-cp-pp-dp", "dp_shard"), 8);
}

TEST(ParallelLayout, StagesInTheMiddleTakeWhatIsLeftOver) {
  const auto layers = [](std::int64_t total, const char* layout) {
    Transformer model = llama();
    model.layers = total;
    return stage_layers(model, parsed(layout));
  };
  EXPECT_THAT(layers(32, "pp=4"), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(layers(126, "pp=4"), ElementsAre(31, 32, 32, 31));
  EXPECT_THAT(layers(127, "pp=4"), ElementsAre(32, 32, 32, 31));
  EXPECT_THAT(layers(7, "pp=2"), ElementsAre(4, 3));
  EXPECT_THAT(layers(10, "pp=2,virtual_stages=2"), ElementsAre(2, 3, 3, 2));
}

// Prediction layers are the last stage's, which has fewer others.
TEST(ParallelLayout, PredictionLayersCountAmongThoseOfTheLastStage) {
  const auto layers = [](std::int64_t total, std::int64_t predictions, const char* layout) {
    Transformer model = llama();
    model.layers = total, model.prediction_layers = predictions;
    return stage_layers(model, parsed(layout));
  };
  EXPECT_THAT(layers(61, 1, "pp=8"), ElementsAre(7, 8, 8, 8, 8, 8, 8, 6));
  EXPECT_THAT(layers(32, 1, "pp=4"), ElementsAre(8, 9, 8, 7));
  EXPECT_THAT(layers(32, 2, "pp=1"), ElementsAre(32));
  EXPECT_THAT(layers(5, 2, "pp=4"), ElementsAre(2, 1, 1, 1));
}

RC_GTEST_PROP(ParallelLayout, StagesHoldAllLayersEvenly, ()) {
  Transformer model = llama();
  ParallelLayout layout;
  layout.pp = pick("layout.pp", rc::gen::inRange(1, 9)),
  layout.virtual_stages = pick("layout.virtual_stages", rc::gen::inRange(1, 4));
  model.layers = pick("model.layers", rc::gen::inRange(layout.pp * layout.virtual_stages, 130));
  const auto layers = stage_layers(model, layout);
  RC_ASSERT(std::accumulate(layers.begin(), layers.end(), std::int64_t{0}) == model.layers);
  const auto [least, most] = std::minmax_element(layers.begin(), layers.end());
  RC_ASSERT(*most - *least <= 1);
  RC_ASSERT(layers.back() == *least || *most == *least);
  // With what else the last one has they are as even, unless that alone is more.
  model.prediction_layers = pick("prediction layers", rc::gen::inRange(1, 4));
  std::vector<std::int64_t> beside = stage_layers(model, layout);
  RC_ASSERT(std::accumulate(beside.begin(), beside.end(), std::int64_t{0}) == model.layers);
  RC_ASSERT(*std::min_element(beside.begin(), beside.end()) >= 1);
  if (beside.size() == 1) return;
  if (beside.back() == 1) {
    beside.pop_back();
  } else {
    beside.back() += model.prediction_layers;
  }
  RC_ASSERT(
      *std::max_element(beside.begin(), beside.end()) - *std::min_element(beside.begin(), beside.end()) <= 1);
}

}  // namespace
}  // namespace cp
