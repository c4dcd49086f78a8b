// Software profiles: the presets, and people's own files.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/software_fields.h"

namespace cp::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

std::string software_error(std::string_view text) {
  try {
    read_software(text, "a.txtpb");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(Software, PresetsAreTheseAndRead) {
  EXPECT_THAT(software_names(), ElementsAre("cprun", "megatron", "meta-serving", "ring-flash-attention",
                                            "sglang", "torchtitan", "trtllm", "usp", "vllm"));
  for (const std::string& name : software_names()) {
    const SoftwareProfile software = find_software(name);
    EXPECT_EQ(software.name, name);
    EXPECT_NO_THROW(validate_software(software)) << name;
    EXPECT_EQ(read_software(write_software(software), "again.txtpb"), software) << name;
  }
}

TEST(Software, EveryFieldHasASourceAndAtMostFiveAreFree) {
  for (const std::string& name : software_names()) {
    const SoftwareProfile software = find_software(name);
    int free = 0;
    for_each_parameter(software, [&](const char* field, double, const Range&) {
      EXPECT_NE(find_source(software.sources, field), nullptr) << name << " " << field;
      ++free;
    });
    EXPECT_LE(free, 5);
    for (const char* field : {"send_empty", "dkv_f32", "strategy", "balance", "sharding_group", "framework",
                              "attention_kernel", "expert_kernel", "loss_f32_copies", "allocator_slack"}) {
      EXPECT_NE(find_source(software.sources, field), nullptr) << name << " " << field;
    }
    const std::size_t of_serving = software.all_reduce == "nccl" ? 0 : 7;
    EXPECT_GE(software.sources.size(), 18U + of_serving) << name;
    for (const Source& source : software.sources)
      EXPECT_FALSE(source.provenance.source.empty()) << name << " " << source.field;
  }
}

// One fused kernel, products all in the precision that was asked for: that needs no words, anything else
// does.
TEST(Software, WhatIsNotAsOneKernelDoesItHasASource) {
  const SoftwareProfile plain;
  int stated = 0;
  for (const std::string& name : software_names()) {
    const SoftwareProfile software = find_software(name);
    const auto check = [&](const char* field, bool as_usual) {
      const bool has_source = find_source(software.sources, field) != nullptr;
      EXPECT_EQ(has_source, !as_usual) << name << " " << field;
      if (has_source) ++stated;
    };
    check("rotary_passes", software.rotary_passes == plain.rotary_passes);
    check("loss_passes", software.loss_passes == plain.loss_passes);
    check("optimizer_passes", software.optimizer_passes == plain.optimizer_passes);
    check("fp8_head", software.fp8_head == plain.fp8_head);
    check("fp8_casts_both", software.fp8_casts_both == plain.fp8_casts_both);
    EXPECT_EQ(read_software(write_software(software), "again.txtpb"), software) << name;
  }
  EXPECT_EQ(stated, 9);  // five of torchtitan, three of megatron, one of vllm
}

TEST(Software, FewerBytesThanOneKernelAreRefused) {
  EXPECT_THAT(
      software_error("like: \"cprun\"\nloss_passes { value: 0.5 origin: measured source: \"mine\" }\n"),
      ::testing::AllOf(::testing::HasSubstr(":2:"), ::testing::HasSubstr("loss_passes"),
                       ::testing::HasSubstr("0.5")));
}

// The struct's defaults are the default profile.
TEST(Software, CprunIsTheDefault) {
  SoftwareProfile software = find_software("cprun");
  software.sources.clear();
  EXPECT_EQ(software, SoftwareProfile{});
}

TEST(Software, PresetsKnowWhatTheirImplementationsDo) {
  EXPECT_FALSE(find_software("megatron").dkv_f32);
  EXPECT_TRUE(find_software("ring-flash-attention").dkv_f32);
  EXPECT_TRUE(find_software("ring-flash-attention").send_empty);
  EXPECT_FALSE(find_software("cprun").send_empty);
  EXPECT_EQ(find_software("torchtitan").framework, "torchtitan");
  EXPECT_EQ(find_software("usp").framework, "none");
  // Number formats are no property of software.
  for (const std::string& name : software_names())
    EXPECT_EQ(find_software(name).linear_precision, LinearPrecision::b16) << name;
  EXPECT_EQ(find_software("torchtitan").sharding_group, ShardingGroup::dp_shard_cp);
}

TEST(Software, StartsFromAPreset) {
  const SoftwareProfile software = read_software(
      "name: \"mine\" like: \"megatron\" backward_progress { value: 0.5 origin: measured source: \"fitted\" "
      "}",
      "a.txtpb");
  SoftwareProfile expected = find_software("megatron");
  expected.name = "mine";
  expected.backward_progress = 0.5;
  set_source(expected.sources, {"backward_progress", {Origin::measured, "fitted"}});
  EXPECT_EQ(software, expected);
}

TEST(Software, ErrorsStandAtTheirPlace) {
  const struct {
    std::string line, message;
  } rows[] = {
      {"forward_progres { value: 1 origin: measured source: \"x\" }",
       "a.txtpb:3:1: unknown field 'forward_progres' of Software; the nearest one is 'forward_progress'"},
      {"forward_progress { value: 1.5 origin: measured source: \"x\" }",
       "a.txtpb:3:1: forward_progress: 1.5 is not in [0, 1]"},
      {"forward_progress { value: 1 }",
       "a.txtpb:3:1: forward_progress: has neither origin nor source; add, for example, origin: published "
       "source: "
       "\"data sheet\", where origin is one of measured, published, estimated, assumed, borrowed"},
      {"forward_progress { value: 1 source: \"x\" }",
       "a.txtpb:3:1: forward_progress: has no origin; add origin: and one of measured, published, estimated, "
       "assumed, borrowed"},
      {"strategy { value: \"ring\" source: \"x\" }",
       "a.txtpb:3:1: strategy: has no origin; add origin: and one of measured, published, estimated, "
       "assumed, borrowed"},
      {"  sharding_group { value: \"dp\" origin: measured source: \"x\" }",
       "a.txtpb:3:3: sharding_group: unknown sharding_group 'dp'; use one of dp_shard, dp_shard_cp"},
      {"linear_precision { value: \"fp8\" origin: measured source: \"x\" }",
       "a.txtpb:3:1: linear_precision: number formats are no property of software; leave it out, and ask "
       "with "
       "--linear-dtype fp8"},
      {"framework { value: \"torchtian\" origin: measured source: \"x\" }",
       "a.txtpb:3:1: framework: unknown framework 'torchtian'; the nearest one is 'torchtitan'; use one of "
       "none, "
       "megatron, torchtitan, deepspeed, vllm, cprun"},
      {"strategy { value: \"rings\" origin: measured source: \"x\" }",
       "a.txtpb:3:1: strategy: unknown strategy 'rings'; the nearest one is 'ring'; use one of ulysses, "
       "all_gather, "
       "ring, double_ring, need_only, pass_q, ulysses_all_gather, ulysses_ring"},
      {"strategy { origin: measured source: \"x\" }", "a.txtpb:3:1: strategy: has no value"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(software_error("name: \"mine\"\nlike: \"cprun\"\n" + row.line + "\n"), row.message) << row.line;
  }
  EXPECT_THAT(software_error("name: \"mine\"\nlike: \"cprun\"\n  balance { value: \"snake\" origin: measured "
                             "source: \"x\" }\n"),
              StartsWith("a.txtpb:3:3: balance: "));
  EXPECT_THAT(software_error("name: \"mine\"\nlike: \"cpran\"\n"),
              StartsWith("a.txtpb:2:1: like: unknown software profile 'cpran'; the nearest one is 'cprun'"));
  EXPECT_THAT(software_error("name: \"mine\"\n"),
              StartsWith("a.txtpb:1:1: the profile lacks forward_progress, backward_progress, "));
  // The example is a value of the field's own kind.
  std::string lacks_strategy = write_software(find_software("cprun"));
  const std::size_t at = lacks_strategy.find("strategy {"), end = lacks_strategy.find("}\n", at);
  EXPECT_THAT(
      software_error(lacks_strategy.erase(at, end + 2 - at)),
      ::testing::HasSubstr("the profile lacks strategy; add each, for example strategy { value: \"ring\" "
                           "origin: assumed source: \"why\" }"));
}

TEST(Software, AnUnknownNameIsAnsweredWithThePresets) {
  try {
    find_software("usb");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_STREQ(
        error.what(),
        "unknown software profile 'usb'; the nearest one is 'usp'; use one of cprun, megatron, meta-serving, "
        "ring-flash-attention, sglang, torchtitan, trtllm, usp, vllm, or a file that ends in .txtpb");
  }
}

}  // namespace
}  // namespace cp::sim
