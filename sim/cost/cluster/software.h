// How an implementation behaves on top of the hardware: what it overlaps, what its kernels do apart, and what
// it sends. At most five free numbers; the rest are facts about the implementation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/fully_shard/sharding_group.h"
#include "sim/cost/cluster/source.h"

namespace cp::sim {

enum class LinearPrecision : std::uint8_t { b16, fp8, nvfp4 };

struct SoftwareProfile {
  std::string name = "cprun";

  // ---- free parameters
  // Share of its speed that an attention kernel keeps while a transfer of its GPU is under way, in [0, 1]: 1
  // overlaps perfectly, 0 not at all.
  double forward_progress = 1, backward_progress = 1;
  double merge_passes = 1;  // how often a merge of partial outputs moves its bytes, >= 0; 1: one fused kernel
  double pack_passes = 1;   // the same of packing for a transfer, >= 0; 0: none is needed
  double kernel_issue_us = 0;  // of the host, for a kernel: a call of a framework, a launch, >= 0

  // ---- facts
  // Of the host, for a collective; and for each send and receive of an exchange, >= 0.
  double collective_issue_us = 0, transfer_issue_us = 0;
  // How many bytes these kernels move over those of one fused kernel that reads and writes in the plan's
  // formats, >= 1: separate operations of a framework, copies in f32. The optimizer's with the clipping of
  // gradients.
  double rotary_passes = 1, loss_passes = 1, optimizer_passes = 1;
  bool fp8_head = true;  // where linear layers are in fp8, the head over the vocabulary is, too
  // Both operands of an fp8 product lie in 16 bits and are cast for it; else the left one.
  bool fp8_casts_both = false;
  bool captured_graphs = false;       // the host issues a whole graph: none of its steps waits for it
  bool send_empty = false;            // sends blocks that nobody needs
  bool dkv_f32 = true;                // partial dK and dV travel in f32; else in the dtype of the inputs
  std::string strategy = "ring";      // a name that named_strategy knows
  std::string balance = "head_tail";  // as parse_balance reads it
  ShardingGroup sharding_group = ShardingGroup::dp_shard_cp;
  std::string framework = "cprun";  // whose layouts can be said: a name that find_framework knows, or "none"
  std::string attention_kernel =
      "any";  // whose curves of the cluster count, where it has them: "fa2", "fa3", ...
  // Which kernel computes a rank's experts in one call, as attention_kernel; "none": their products are calls
  // of their own.
  std::string expert_kernel = "any";
  double loss_f32_copies = 1;  // of a chunk's logits, beside those in 16 bits, in [0, 16]
  // Share of what is allocated that the allocator reserves beyond it, in [0, 1].
  double allocator_slack = 0.02;

  // ---- facts and free parameters of software that serves; a profile may leave them out
  // Whose all-reduce joins tensor-parallel ranks of one NVLink domain, where the cluster's rates have it;
  // "nccl": the library's. With another one, a reduce-scatter and the gather behind it are one all-reduce.
  std::string all_reduce = "nccl";
  // Weights lie in the format of the products, and scales of activations are known beforehand: products take
  // the rates of stored operands.
  bool stored_products = false;
  bool fused_rows = false;  // sums and fills ride with the kernel beside them
  // Prompts are read in steps of their own, before anything is written on; else beside.
  bool prompts_apart = false;
  bool host_ahead = false;     // the host prepares the next step while the GPU computes this one
  double step_host_us = 0;     // of the host, for each step of a batch: scheduling, sampling, answers
  double request_host_us = 0;  // and for each request in it

  std::vector<Source> sources;  // of each of the above, by its name

  // ---- the question's choices, which no profile makes
  // Of linear layers' products; b16: of their operands.
  LinearPrecision linear_precision = LinearPrecision::b16;
  // Of queries, keys and values; b16: of their views.
  LinearPrecision attention_precision = LinearPrecision::b16;
  bool fp8_cache = false;  // serving: keys and values are kept in 8 bits, whatever the workload's kv_dtype

  bool operator==(const SoftwareProfile&) const = default;
};

// Throws InvalidInput that names each field at fault, its value and what is allowed.
void validate_software(const SoftwareProfile& software);

}  // namespace cp::sim
