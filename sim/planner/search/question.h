// What `cpsim plan` is asked: a model, a workload, a cluster, a piece of software, and what is fixed of the
// layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/transformer/memory.h"
#include "shared/transformer/model.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/workload.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/frameworks/framework.h"
#include "sim/cost/serving/steady_state.h"

namespace cp::sim {

// What the search must not vary of a layout. It is free to choose whatever is unset.
struct Fixed : ParallelConfig {
  Fixed() { expert_rule = ExpertRule::nested; }
  std::optional<int> virtual_stages, loss_chunks, zero, reshard, prefetch, bucket, mlp_chunks;
  std::optional<bool> sync_once, sequence_parallel, host_activations;
  std::optional<std::int64_t> threshold, micro_batch;
  std::optional<std::string> strategy;  // a name of named_strategy
  std::optional<int> inner_ring;
  std::optional<bool> ulysses_inner;
  std::optional<Strategy::Rotation> rotation;
  std::optional<Balance> balance;
  // Of strategies that have them: blocks that arrive in turn, what comes at once (shared/context_parallel).
  std::optional<int> slots, pieces;
  // Nothing but a question asks for merges beside attention: what they gain is not measured.
  std::optional<Strategy::Merges> merges;
  // Of layers with a window or a chunk. A value that is nothing: that of all layers.
  std::optional<std::optional<Core>> window_core;
  // Of layers with a window or a chunk, and of those with a recurrence. A value that is nothing: that of all.
  std::optional<std::optional<Balance>> window_balance, scan_balance;
  std::optional<StateScan> scan;       // of layers with a recurrence
  std::optional<Strategy::Keys> keys;  // of latent attention: heads or latent
  std::optional<Recompute> recompute;
  std::optional<ShardingGroup> sharding;
  std::optional<AxisOrder> order;
  // Of sharded parameters, with defaults for what is unset.
  ShardChoices shard_choices() const;
  void reset_shard_choices();
  bool operator==(const Fixed&) const = default;
};

// A layout of which some keys are given: the search chooses the others.
struct PartialLayout {
  std::string text;  // as it was typed: "tp=4,cp=8"
  Fixed given;
  // The layout with defaults for all other keys; absent if these would leave GPUs without work.
  std::optional<ParallelLayout> as_written;
};

// How far the memory of real runs lies from its prediction, as factors of the prediction: that of all `rows`
// measured runs lies between `low` and `high`.
struct MemoryWidth {
  double low = 1, high = 1;
  int rows = 0;  // 0: nobody measured
};

struct PlanQuestion {
  Transformer model;
  std::string model_source;              // file or preset
  std::vector<std::string> assumptions;  // of the model and of all else, one sentence each
  std::vector<std::string> warnings;     // what likely is not meant so, of the model; shown first
  Workload workload;
  Cluster cluster;              // with its number of nodes
  bool part_of_a_node = false;  // the cluster's one node has fewer GPUs than the preset's
  SoftwareProfile software;
  // Decode: the same GPUs also read the prompts of requests that come as others are answered
  // (sim/cost/serving/steady_state.h).
  std::optional<Arrivals> aggregated;
  // The search keeps to what each of these can say. Those that can say everything are not listed.
  std::vector<Framework> frameworks;
  // What they cannot say of the workload that was asked for; `workload` is what they run instead.
  std::vector<std::string> unsaid;
  Fixed fixed;
  MemoryWidth memory_width;
  std::optional<double> max_memory_gib;  // of a GPU; unset: the cluster's usable memory
  std::optional<double> max_ttft_ms;     // decode: layouts whose prompt takes longer are left out
  std::optional<PartialLayout> baseline;
  int top = 5;
};

// How many bytes one GPU may use for all of Memory except the context, which a cluster's usable memory does
// not contain.
std::int64_t usable_bytes(const PlanQuestion& question);
// What the cluster and the software add to a layout's memory.
MemoryRules memory_rules(const PlanQuestion& question);
// The bytes of a layout's memory that usable_bytes() limits.
std::int64_t counted_bytes(const Memory& memory);
// Whether products of linear layers are in FP8 or in fewer bits: somebody asked for it, and the GPU has them.
bool fp8_products(const PlanQuestion& question);
// Whether the operands of attention are.
bool fp8_attention(const PlanQuestion& question);
// The frameworks to whose words the search keeps: "torchtitan and megatron".
std::string framework_names(const PlanQuestion& question);
// The type of linear layers' products: "fp8", "nvfp4", or the workload's.
std::string_view linear_dtype_name(const PlanQuestion& question);
// The type of a cached element: "fp8", or the workload's.
std::string_view cache_dtype_name(const PlanQuestion& question);

}  // namespace cp::sim
