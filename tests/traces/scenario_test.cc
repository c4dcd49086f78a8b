#include "traces/scenario.h"

#include <cstdio>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/redistribute/cost_model.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kWhole = R"txtpb(# A head-tail shard is gathered, then sharded anew.
redistribute {
  mesh: "dp=2,cp=4@0/2/4/6/1/3/5/7"
  to_mesh: "x=8"
  shape: "1024x1024x256"
  dtype: bf16
  from: "S(0),S(1,head_tail)" to : "S(2)" objective : bytes max_memory_factor : 1.5 travel_dtype : f32 cost {
step_latency_us:
  0 exchange_efficiency : 0.25 ranks_per_node : 4 axis_gbps{key : "dp" value : 25} axis_gbps {
  key:
    "cp" value : 300
  }
}
seed : 18446744073709551615 schedule : baton gradient : replicated gradient_scale : down
}
)txtpb";

std::string error_of_scenario(std::string_view text) {
  try {
    read_scenario_text(text, "a.txtpb");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "(no error)";
}

// A good scenario of one field a line; line 7 is the given one.
std::string with_line(std::string_view line) {
  return "redistribute {\n  mesh: \"cp=2\"\n  shape: \"8x8\"\n  dtype: f32\n  from: \"S(0)\"\n  to: \"R\"\n" +
         std::string(line) + "\n}\n";
}

TEST(Scenario, ReadsEveryField) {
  const proto::Scenario scenario = read_scenario_text(kWhole, "a.txtpb");
  ASSERT_TRUE(scenario.has_redistribute());
  const proto::Redistribute& job = scenario.redistribute();
  EXPECT_EQ(job.mesh(), "dp=2,cp=4@0/2/4/6/1/3/5/7");
  EXPECT_EQ(job.to_mesh(), "x=8");
  EXPECT_EQ(job.shape(), "1024x1024x256");
  EXPECT_EQ(job.dtype(), proto::bf16);
  EXPECT_EQ(job.from(), "S(0),S(1,head_tail)");
  EXPECT_EQ(job.to(), "S(2)");
  EXPECT_EQ(job.objective(), proto::Redistribute::bytes);
  EXPECT_EQ(job.max_memory_factor(), 1.5);
  EXPECT_EQ(job.travel_dtype(), proto::f32);
  EXPECT_TRUE(job.cost().has_step_latency_us());  // 0 is not "unset"
  EXPECT_EQ(job.cost().step_latency_us(), 0);
  EXPECT_FALSE(job.cost().has_peer_latency_us());
  EXPECT_EQ(job.cost().exchange_efficiency(), 0.25);
  EXPECT_EQ(job.cost().ranks_per_node(), 4);
  EXPECT_EQ(job.cost().axis_gbps().at("dp"), 25);
  EXPECT_EQ(job.cost().axis_gbps().size(), 2U);
  EXPECT_EQ(job.seed(), 18446744073709551615U);
  EXPECT_EQ(job.schedule(), proto::Redistribute::baton);
  EXPECT_EQ(job.gradient(), proto::Redistribute::replicated);
  EXPECT_EQ(job.gradient_scale(), proto::Redistribute::down);
}

constexpr std::string_view kPlan = R"txtpb(plan {
  model: "mixtral-8x7b"
  cluster: "dgx-h100"
  nodes: 2
  gpus: 16
  software: "megatron"
  phase: decode
  seq_len: 131200
  global_batch: 16
  global_batch_tokens: 2097152
  micro_batch: 1
  concurrent: 4
  cached: 131072
  new_tokens: 128
  ttft_max: 2500
  dtype: bf16
  kv_dtype: f16
  gradient_dtype: f32
  optimizer: "adamw:offload"
  recompute: "every:4"
  expert_imbalance: 1.25
  fix: "tp=8"
  fix: "cp=2,strategy=ring"
  max_memory: 72.5
  baseline: "tp=8,cp=2"
  top: 3
  linear_dtype: "fp8"
  kernels: "fa3"
  fp8_cache: true
  aggregated: "spread"
  attention_dtype: "fp8"
  mtp_layers: 2
  parallel_dims {
    tp: 4
  }
  documents: "0/10/50"
  attention_dropout: 0.25
}
)txtpb";

// Each line is a field, so that one which is added is missed here.
TEST(Scenario, EveryFieldOfAPlanIsWrittenAsItIsRead) {
  const proto::Scenario scenario = read_scenario_text(kPlan, "a.txtpb");
  ASSERT_TRUE(scenario.has_plan());
  const std::string text = write_scenario_text(scenario);
  EXPECT_EQ(text.substr(text.find("plan {")), kPlan);
  const auto* plan = proto::PlanLayouts::descriptor();
  for (int i = 0; i < plan->field_count(); ++i)
    EXPECT_THAT(kPlan, ContainsRegex("\n  " + plan->field(i)->name() + "(: | \\{)"));
}

TEST(Scenario, WhatIsNotWrittenIsUnset) {
  const proto::Redistribute job = read_scenario_text(with_line(""), "a.txtpb").redistribute();
  EXPECT_EQ(job.objective(), proto::Redistribute::time);
  EXPECT_EQ(job.schedule(), proto::Redistribute::parallel);
  EXPECT_EQ(job.travel_dtype(), proto::dtype_unspecified);
  EXPECT_FALSE(job.has_max_memory_factor());
  EXPECT_FALSE(job.has_cost());
}

TEST(Scenario, WrittenTextReadsAsTheSame) {
  const proto::Scenario scenario = read_scenario_text(kWhole, "a.txtpb");
  const std::string text = write_scenario_text(scenario);
  EXPECT_THAT(text, AllOf(StartsWith("# proto-file: traces/scenario.proto\n"), HasSubstr("\n  dtype: bf16\n"),
                          HasSubstr("mesh: \"dp=2,cp=4@0/2/4/6/1/3/5/7\"")));
  EXPECT_TRUE(MessageDifferencer::Equals(read_scenario_text(text, "b.txtpb"), scenario)) << text;
  EXPECT_EQ(write_scenario_text(read_scenario_text(text, "b.txtpb")), text);
}

RC_GTEST_PROP(Scenario, RandomScenariosComeBackAsTheyWere, ()) {
  const auto text = [] {
    return pick("text", rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127))));
  };
  proto::Scenario scenario;
  proto::Redistribute& job = *scenario.mutable_redistribute();
  job.set_mesh(text());
  job.set_shape(text());
  job.set_from(text());
  job.set_to(text());
  job.set_dtype(pick("dtype", rc::gen::element(proto::f32, proto::f16, proto::bf16, proto::i32, proto::i64)));
  job.set_seed(pick("seed", rc::gen::arbitrary<std::uint64_t>()));
  if (pick("whether job.set_max_memory_factor", rc::gen::arbitrary<bool>()))
    job.set_max_memory_factor(pick("max_memory_factor", rc::gen::arbitrary<double>()));
  const auto* cost = proto::CostModel::descriptor();
  for (int i = 0; i < cost->field_count(); ++i) {
    if (cost->field(i)->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) continue;
    if (!pick("whether continue", rc::gen::arbitrary<bool>())) continue;
    job.cost().GetReflection()->SetDouble(job.mutable_cost(), cost->field(i),
                                          pick("a cost", rc::gen::arbitrary<double>()));
  }
  (*job.mutable_cost()->mutable_axis_gbps())[text()] = pick("gbps of an axis", rc::gen::arbitrary<double>());
  RC_ASSERT(MessageDifferencer::Equals(read_scenario_text(write_scenario_text(scenario), "x"), scenario));
}

// The names of cost_model.h: a figure that is added there does not compile here.
TEST(Scenario, EveryFigureOfTheCostModelCanBeSet) {
  [[maybe_unused]] const auto& [step_latency_us, peer_latency_us, local_latency_us, memory_gbps,
                                all_gather_efficiency, reduce_scatter_efficiency, all_reduce_efficiency,
                                all_to_all_efficiency, exchange_efficiency, node_gbps, network_gbps,
                                ranks_per_node, axis_gbps] = CostModel{};
  for (const char* name :
       {"step_latency_us", "peer_latency_us", "local_latency_us", "memory_gbps", "all_gather_efficiency",
        "reduce_scatter_efficiency", "all_reduce_efficiency", "all_to_all_efficiency", "exchange_efficiency",
        "node_gbps", "network_gbps", "ranks_per_node", "axis_gbps"}) {
    EXPECT_NE(proto::CostModel::descriptor()->FindFieldByName(name), nullptr) << name;
  }
  EXPECT_EQ(proto::CostModel::descriptor()->field_count(), 13);
}

TEST(Scenario, ErrorsNameTheirPlaceAndTheNearestName) {
  const struct {
    std::string text, message;
  } rows[] = {
      {with_line("  objektive: bytes"),
       "a.txtpb:7:3: unknown field 'objektive' of Redistribute; the nearest one is 'objective'"},
      {with_line("\tcost { memory_gpbs: 3 }"),
       "a.txtpb:7:9: unknown field 'memory_gpbs' of CostModel; the nearest one is 'memory_gbps'"},
      {with_line("  schedul\n\n  : baton"),
       "a.txtpb:7:3: unknown field 'schedul' of Redistribute; the nearest one is 'schedule'"},
      {"redistributed { mesh: \"x=1\" }",
       "a.txtpb:1:1: unknown field 'redistributed' of Scenario; the nearest one is "
       "'redistribute'"},
      {with_line("  travel_dtype: f8"),
       "a.txtpb:7:17: unknown travel_dtype 'f8'; use one of f32, f16, bf16, i32, i64"},
      {with_line("  travel_dtype: 17"),
       "a.txtpb:7:3: unknown travel_dtype 17; use one of f32, f16, bf16, i32, i64"},
      {with_line("  objective: speed"), "a.txtpb:7:14: unknown objective 'speed'; use one of time, bytes"},
      {with_line("\tseed:\tx"), "a.txtpb:7:8: Expected integer, got: x"},
      {with_line("  seed: -1"), "a.txtpb:7:9: Expected integer, got: -"},
      {with_line("  seed: 18446744073709551616"), "a.txtpb:7:9: Integer out of range (18446744073709551616)"},
      {with_line("  seed: \"4\""), "a.txtpb:7:9: Expected integer, got: \"4\""},
      {with_line("  to_mesh: cp=2"), "a.txtpb:7:12: Expected string, got: cp"},
      {with_line("  to: \"S(1)\""), "a.txtpb:7:5: Non-repeated field \"to\" is specified multiple times."},
      {"redistribute {", "a.txtpb:1:15: Expected identifier, got: "},
      {"",
       "a.txtpb:1:1: the scenario asks for nothing; add: redistribute { ... }, run { ... }, "
       "recurrence { ... }, plan { ... } or train { ... }"},
      {"# only a comment\n",
       "a.txtpb:1:1: the scenario asks for nothing; add: redistribute { ... }, run { ... }, "
       "recurrence { ... }, plan { ... } or train { ... }"},
      {"plan { nodes: 2 }",
       "a.txtpb:1:1: plan lacks fields that it needs to plan; add, for example, model: \"llama-3.1-8b\", "
       "seq_len: 131072"},
      {"plan {\n  phase: serving\n}",
       "a.txtpb:2:10: unknown phase 'serving'; use one of training, prefill, decode"},
      {"plan {\n  modle: \"x\"\n}",
       "a.txtpb:2:3: unknown field 'modle' of PlanLayouts; the nearest one is 'model'"},
      {"\n  redistribute { mesh: \"cp=2\" to: \"R\" }\n",
       "a.txtpb:2:3: redistribute lacks fields that it needs to move a tensor; add, for example, shape: "
       "\"1024x1024\", from: "
       "\"S(0),R\""},
  };
  for (const auto& row : rows) EXPECT_EQ(error_of_scenario(row.text), row.message) << row.text;
}

TEST(Scenario, AllErrorsAreReportedAtOnce) {
  EXPECT_EQ(error_of_scenario("redistribute {\n"
                              "  mash: \"cp=2\"\n"
                              "  shape: 8x8\n"
                              "  dtype: float\n"
                              "  travel_dtype: double\n"
                              "  from: \"S(0)\"  # right\n"
                              "  tu: \"R\"\n"
                              "  seed: 1.5\n"
                              "  cost { ranks: 8 }\n"
                              "}\n"),
            "a.txtpb:2:3: unknown field 'mash' of Redistribute; the nearest one is 'mesh'\n"
            "a.txtpb:3:10: Expected string, got: 8\n"
            "a.txtpb:4:10: unknown dtype 'float'; use one of f32, f16, bf16, i32, i64\n"
            "a.txtpb:5:17: unknown travel_dtype 'double'; use one of f32, f16, bf16, i32, i64\n"
            "a.txtpb:7:3: unknown field 'tu' of Redistribute; the nearest one is 'to'\n"
            "a.txtpb:8:9: Expected integer, got: 1.5\n"
            "a.txtpb:9:10: unknown field 'ranks' of CostModel; the nearest one is 'ranks_per_node'");
}

// Where the rest cannot be told from the error, nothing is made up.
TEST(Scenario, ParsingStopsWhereTheRestIsUnclear) {
  EXPECT_EQ(error_of_scenario("redistribute {\n  mesh:\n  shape: \"8\"\n  from: \"R\"\n  to: \"R\"\n}\n"),
            "a.txtpb:3:3: Expected string, got: shape");
  EXPECT_EQ(error_of_scenario("redistribute {\n  cost { node_gbps: fast }\n  seed: x\n}\n"),
            "a.txtpb:2:21: Expected double, got: fast");
}

// Hostile texts are errors, not crashes.
TEST(Scenario, DeepNestingIsRefused) {
  std::string known = "redistribute {", unknown;
  for (int i = 0; i < 100'000; ++i) known += "cost {", unknown += "a {";
  EXPECT_THAT(error_of_scenario(known), StartsWith("a.txtpb:1:"));
  EXPECT_THAT(error_of_scenario(unknown), StartsWith("a.txtpb:1:"));
}

RC_GTEST_PROP(Scenario, AnyTextIsAScenarioOrAnError, ()) {
  std::string text(kWhole);
  for (int i = pick("changes", rc::gen::inRange(1, 5)); i > 0; --i) {
    const auto at = pick("at", rc::gen::inRange<std::size_t>(0, text.size()));
    const auto length = pick("length", rc::gen::inRange<std::size_t>(0, 20));
    text.replace(at, length,
                 pick("what takes its place", rc::gen::container<std::string>(rc::gen::arbitrary<char>())));
    if (text.empty()) return;
  }
  error_of_scenario(text);
}

TEST(Scenario, FilesAreRead) {
  const std::string path = ::testing::TempDir() + "cp_scenario_test.txtpb";
  std::ofstream(path) << kWhole;
  EXPECT_TRUE(MessageDifferencer::Equals(read_scenario_file(path), read_scenario_text(kWhole, path)));
  std::ofstream(path) << "redistribute { x: 1 }";
  EXPECT_THROW(
      {
        try {
          read_scenario_file(path);
        } catch (const InvalidInput& error) {
          EXPECT_THAT(error.what(), StartsWith(path + ":1:16: unknown field 'x'"));
          throw;
        }
      },
      InvalidInput);
  std::ofstream(path).close();
  EXPECT_THROW(read_scenario_file(path), InvalidInput);
  std::remove(path.c_str());
  EXPECT_THROW(read_scenario_file(path), InvalidInput);
  EXPECT_THROW(read_scenario_file(::testing::TempDir()), InvalidInput);
}

}  // namespace
}  // namespace cp
