// Which word was meant: one rule for flags, fields, presets, models and strategies.
#include "shared/base/nearest.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace cp {
namespace {

using Names = std::vector<std::string>;

const Names kClusters = {"a100-pcie", "a800", "dgx-a100", "dgx-h100", "gb200-nvl72",
                         "generic",   "h800", "hgx-b200", "hgx-h200", "l40s-pcie"};
const Names kModels = {"llama-2-7b",   "llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b",
                       "mixtral-8x7b", "qwen2.5-72b",    "qwen2.5-7b",    "qwen3-32b"};
const Names kStrategies = {"ulysses", "all_gather",         "ring",        "double_ring", "need_only",
                           "pass_q",  "ulysses_all_gather", "ulysses_ring"};
const Names kCommands = {"redistribute", "verify", "plan"};
const Names kKeys = {"tp", "cp", "pp", "dp_shard", "micro_batch", "loss_chunks", "mlp_chunks"};
const Names kFields = {"node_gbps", "memory_gbps", "ranks_per_node", "mesh", "to", "schedule"};

struct Case {
  Names known;
  std::string_view word;
  std::string near;  // "": none
};

TEST(Nearest, IsWhatSomebodyMeant) {
  const Case cases[] = {// The same letters.
                        {kStrategies, "allgather", "all_gather"},
                        {kStrategies, "Double-Ring", "double_ring"},
                        {kClusters, "DGX_H100", "dgx-h100"},
                        // A name that contains the word.
                        {kClusters, "h200", "hgx-h200"},
                        {kClusters, "b200", "hgx-b200"},
                        {kClusters, "gb200", "gb200-nvl72"},
                        {kClusters, "dgx-h10", "dgx-h100"},
                        {kModels, "llama3", "llama-3.1-8b"},
                        {kModels, "llama-3-70b", "llama-3.1-70b"},
                        {kModels, "mixtral", "mixtral-8x7b"},
                        {kModels, "qwen3", "qwen3-32b"},
                        {kFields, "ranks", "ranks_per_node"},
                        {kFields, "schedul", "schedule"},
                        {kKeys, "loss_chunk", "loss_chunks"},
                        {kStrategies, "rin", "ring"},
                        // A name that the word contains.
                        {kClusters, "generics", "generic"},
                        {kStrategies, "rings", "ring"},
                        {kKeys, "tpp", "tp"},
                        {kKeys, "cp_size", "cp"},
                        // A name that contains parts of it.
                        {kClusters, "dgx-h200", "hgx-h200"},
                        {kClusters, "p5en-h200-x8", "hgx-h200"},
                        {kModels, "meta-llama-3.1", "llama-3.1-8b"},
                        {kKeys, "micro_size", "micro_batch"},
                        {kKeys, "num_chunks", "mlp_chunks"},
                        {kFields, "node_gpbs", "node_gbps"},
                        {kFields, "memory_gpbs", "memory_gbps"},
                        // Letters that were missed, swapped or struck beside.
                        {kCommands, "redistibute", "redistribute"},
                        {kCommands, "verfy", "verify"},
                        {kCommands, "plam", "plan"},
                        {kFields, "mash", "mesh"},
                        {kFields, "tu", ""},
                        {kKeys, "dp_shrad", "dp_shard"},
                        {kModels, "lama-3.1-8x", "llama-3.1-8b"},
                        {{"abc", "abe"}, "abd", "abc"},
                        // Nothing of it.
                        {kCommands, "fuzz", ""},
                        {kCommands, "", ""},
                        {kCommands, "-", ""},
                        {{}, "plan", ""}};
  for (const Case& one : cases) {
    EXPECT_EQ(nearest(one.word, one.known), one.near) << one.word;
    if (one.near.empty()) continue;
    EXPECT_EQ(nearest_name(one.word, {one.known.begin(), one.known.end()}), one.near) << one.word;
  }
}

TEST(Nearest, AKnownWordIsItsOwn) {
  for (const Names* names : {&kClusters, &kModels, &kStrategies, &kCommands, &kKeys, &kFields}) {
    for (const std::string& name : *names) EXPECT_EQ(nearest(name, *names), name);
  }
}

TEST(Nearest, NameIsOneWhereNoneIsNear) {
  EXPECT_EQ(nearest_name("tu", {"mesh", "to", "from"}), "to");
  EXPECT_EQ(nearest_name("", {"mesh", "to"}), "to");
  EXPECT_EQ(nearest_name("fuzz", {"redistribute", "plan"}), "plan");
}

}  // namespace
}  // namespace cp
