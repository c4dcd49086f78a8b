// SoftwareProfile: how an implementation behaves on top of the hardware. It says what the implementation
// overlaps, what it does in separate kernels, and what it sends. At most five numbers are free, that is,
// fitted to measurements; the rest are facts about the implementation.
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
  // The share of its speed that an attention kernel keeps while its GPU sends or receives, in [0, 1]. 1 is
  // perfect overlap, 0 is none.
  double forward_progress = 1, backward_progress = 1;
  double merge_passes = 1;  // how often a merge of partial outputs moves its bytes, >= 0; 1: one fused kernel
  double pack_passes = 1;   // the same of packing for a transfer, >= 0; 0: none is needed
  double kernel_issue_us = 0;  // of the host, for a kernel: a call of a framework, a launch, >= 0

  // ---- facts
  // What the host needs to issue a collective, and for each send and receive of an exchange, >= 0.
  double collective_issue_us = 0, transfer_issue_us = 0;
  // How many times the bytes of one fused kernel, which reads and writes in the plan's formats, these kernels
  // move, >= 1. It is more than 1 for separate operations of a framework and for copies in f32. The
  // optimizer's number includes the clipping of gradients.
  double rotary_passes = 1, loss_passes = 1, optimizer_passes = 1;
  bool fp8_head = true;  // if linear layers are in fp8, so is the head over the vocabulary
  // True: both operands of an fp8 product lie in 16 bits and are cast for it. False: only the left one.
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
  // Which kernel computes a rank's experts in one call, in the same form as attention_kernel. "none" means
  // that each expert's products are calls of their own.
  std::string expert_kernel = "any";
  double loss_f32_copies = 1;  // of a chunk's logits, beside those in 16 bits, in [0, 16]
  // What the allocator reserves beyond what is allocated, as a share of the latter, in [0, 1].
  double allocator_slack = 0.02;

  // The most CTAs (thread blocks, one for each channel) that a collective of NCCL may take, from 1 to 64, as
  // `cprun profile` chose it (cli/cprun/profile/channel_choice.h). The timeline does not read it: what it
  // changes is measured with it. 0: NCCL chooses.
  double max_ctas = 0;

  // ---- facts and free parameters of software that serves; a profile may leave them out
  // Whose all-reduce tensor-parallel ranks of one NVLink domain use, if the cluster's rates have it. "nccl"
  // is the library's own. With any other one, a reduce-scatter and the gather after it become one all-reduce.
  std::string all_reduce = "nccl";
  // True if weights are stored in the format of the products, and scales of activations are known beforehand.
  // Then the rates of stored operands count (StoredProductRate).
  bool stored_products = false;
  bool fused_rows = false;  // sums and fills are part of the kernel next to them, without a launch
  // True: prompts are read in steps of their own, before tokens are written. False: both share a step.
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
