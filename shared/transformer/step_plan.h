// The work of a whole model, written down as plans: what one rank does for a part of a step.
//
// Layers are a Repeat; weights of layer i+1 are gathered while layer i computes (two slots). Rows of
// activations are [batch x rows] x hidden; a rank's rows of the sequence are those that its attention
// strategy gives it at home, and between the tensor-parallel regions its tp-th part of them, padded to the
// same number on all tp ranks.
//
// Streams: "compute"; "tp", "ep", "pp", "fsdp" for the collectives of these axes, "fsdp_reduce" for gradients
// that are reduced and scattered, so that they do not hold up the next gather, "replicas" and "norm" in the
// update; "to_host" and "from_host" for copies between the GPU's memory and the host's, and "host" for what
// the host itself computes; attention's own as attention_plan() names them. Groups are called like their
// streams, or more closely: "fsdp_experts", "fsdp_experts_reduce" of experts that are sharded over other
// ranks, "replicas_experts", "tp_kv" of tp ranks that hold one kv head, "tied" of the stages that share a
// table, "norm_shards", "norm_tp" and "norm_pp" of the gradients' norm. axis_of_group() (group_axis.h) knows
// all of them.
//
// Parameters. Without pipeline stages each layer, the experts of each layer, the embedding and the head with
// the final norm are units of their own (shared/fully_shard/unshard_writer.h), gathered when they are needed,
// forward and backward. With zero=1, and with stages, a rank keeps whole parameters in `dtype` and whole
// gradients in `gradient_dtype`; they are gathered and reduced once a step, in the update. With zero=2
// gradients are reduced and scattered behind each layer. The same holds where a unit is not shared, without
// the gathers. Products add to whole gradients themselves, in f32. Serving keeps whole parameters, whatever
// the layout shards. Gradients are added to those that the caller hands over, zero before the first
// micro-batch.
//
// Kept for the backward pass, by Recompute, stacked over the layers that keep it:
//   all           x (the stack has one piece more, the last layer's output)
//   none          outputs of the norms (one tp rank's rows: gathered again backward), rotated q, k and v or
//                 what attention saved instead of them, out, lse, x between attention and MLP, gate and up,
//                 the activation's output; with qk_norm q and k before it; of experts the router's logits and
//                 choice, and the rows and weights that arrived
//   selective     the same without the norms' and the activation's outputs
// With mlp_chunks nothing of what a dense MLP makes on its way.
//
// Kernels that no host version exists of are RowKernels: plans are complete but run nowhere yet
// (shape_target()).
//
// A buffer's name begins with the memory term that it counts for, as in shared/transformer/memory.h:
// "parameters/...", "master/...", "gradients/...", "optimizer/...", "unsharded/...", "activations/...",
// "working/...", "logits/...", "attention/...", "kv_cache/..."; that of one in host memory with "host/"
// (shared/plan/host_place.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/plan.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

// Parts of a step. Without pipeline stages a training step is micro_batch, accumulation times, and update.
// With them it is forward and backward of each stage for each micro-batch, in the schedule's order, and
// update of each stage. The last stage's forward part ends with head and loss, forward and backward, and
// hands over activations/dx, the gradient of its last output.
enum class StepPart : std::uint8_t {
  micro_batch,  // embedding, layers, loss, and back
  forward,      // of one stage: receives, computes, sends
  backward,     // of one stage
  update,       // reduction among replicas, norm of the gradients, optimizer
  prefill,  // of one stage: reads the tokens behind `cached`, fills the cache, gives the last token's logits
  decode,   // of one stage: one more token for each request
};
std::string_view name(StepPart part);

struct StepRequest {
  Transformer model;
  Workload workload;
  ParallelLayout layout;
};

// Attention plans by request, pass and index of the rank: most steps of a search share a few. Bounded. A plan
// is that of attention_plan(), save for its digest of inputs, and stays valid until the next one is asked
// for.
class AttentionPlanCache {
 public:
  explicit AttentionPlanCache(std::size_t max_plans = 256) : max_plans_(max_plans) {}
  const Plan& get(const AttentionRequest& request, AttentionPass pass, Rank self, const Target& target);

 private:
  struct Entry {
    Plan plan;
    std::vector<Group> groups;  // with the indices of the ranks
  };
  std::size_t max_plans_;
  std::map<Digest, Entry> plans_;
};

// The plan of one rank. `stage` counts all pp * virtual_stages of them and must be one of the rank's. Throws
// InvalidInput with refuse()'s reason for what is not legal.
Plan step_plan(const StepRequest& request, StepPart part, int stage, Rank self,
               AttentionPlanCache* cache = nullptr);
// Of all ranks that hold the stage, ascending.
std::vector<Plan> step_plans(const StepRequest& request, StepPart part, int stage,
                             AttentionPlanCache* cache = nullptr);

// The parts that a step of the request has, each once.
std::vector<StepPart> parts_of(const StepRequest& request);
// The plans of all ranks for one part of one turn: of each pipeline rank its first stage, so that ranks of
// neighbouring stages meet.
std::vector<Plan> plans_of_all_ranks(const StepRequest& request, StepPart part);

// Of the ranks that hold the stage, the first one whose attention has most allowed pairs: the others wait for
// it.
Rank busiest_rank(const StepRequest& request, int stage);

}  // namespace cp
