// The work of a whole model, written down as plans: what one rank does for a part of a step.
//
// Layers are a Repeat; weights of layer i+1 are gathered while layer i computes (two slots). Rows of activations are
// [batch x rows] x hidden; a rank's rows of the sequence are those that its attention strategy gives it at home, and between the
// tensor-parallel regions its tp-th part of them. Streams: "compute"; "tp", "cp", "ep", "fsdp", "pp" for the groups of these
// axes, each group on the stream of its name; attention's own streams as attention_plan() names them.
//
// Kernels that no host version exists of are RowKernels: plans are complete but run nowhere yet (shape_target()).
//
// A buffer's name begins with the memory term that it counts for, as in shared/transformer/memory.h: "parameters/...",
// "gradients/...", "optimizer/...", "unsharded/...", "activations/...", "logits/...", "attention/...", "kv_cache/...".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/plan.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

// Parts of a step. Without pipeline stages a training step is micro_batch, accumulation times, and update. With them it is
// forward and backward of each stage for each micro-batch, in the schedule's order, and update.
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

// Attention plans by request, pass and index of the rank: most steps of a search share a few. Bounded. A plan is that of
// attention_plan(), save for its digest of inputs, and stays valid until the next one is asked for.
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

// The plan of one rank. `stage` counts all pp * virtual_stages of them and must be one of the rank's. Throws InvalidInput with
// refuse()'s reason for what is not legal.
Plan step_plan(const StepRequest& request, StepPart part, int stage, Rank self,
               AttentionPlanCache* cache = nullptr);
// Of all ranks that hold the stage, ascending.
std::vector<Plan> step_plans(const StepRequest& request, StepPart part, int stage,
                             AttentionPlanCache* cache = nullptr);

// Of the ranks that hold the stage, the first one whose attention has most allowed pairs: the others wait for it.
Rank busiest_rank(const StepRequest& request, int stage);

}  // namespace cp
