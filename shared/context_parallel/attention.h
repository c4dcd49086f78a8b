// ContextParallelAttention: attention over a sequence that is split across ranks, on the caller's buffers and any Device.
//
//   ContextParallelAttention attention(device, {0, 1, 2, 3}, named_strategy({"ring", {}, {}}, problem, 4), cache);
//   attention.forward(problem, {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}});
//   attention.backward(problem, {{"dout", dout}, ..., {"dq", dq}, {"dk", dk}, {"dv", dv}});
//
// With {.gradients = {.dk = false, .dv = false}} the backward pass makes dq alone. lse is that of the rank's own rows, like out, unless
// {.lse = LsePlace::computed} leaves it where it was computed.
//
// Buffers have the names, parts and formats of attention_plan.h. Plans are made for the device's target, so that a GPU's library computes
// what it takes of the masks; those of all lengths that come by are kept in the caller's cache.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/device.h"
#include "shared/plan/plan_cache.h"
#include "shared/plan/trace.h"

namespace cp {

// Memory of the device, by the buffer's name.
using NamedBuffers = std::map<std::string, void*, std::less<>>;

class ContextParallelAttention {
 public:
  // The device and the cache must outlive it. `ranks` are the cp ranks in order, the device's among them; `options` is what is asked of
  // the passes, the same on all ranks.
  ContextParallelAttention(Device& device, std::vector<Rank> ranks, Strategy strategy, PlanCache& plans,
                           AttentionOptions options = {});

  // Bytes of each buffer that a pass takes from this rank's caller, by name.
  std::map<std::string, std::int64_t> buffer_bytes(const AttentionProblem& problem, AttentionPass pass);

  // Collective over the ranks. Return when the device is done. Throw InvalidInput for what the strategy cannot do with the problem, and
  // for a buffer that is missing or that the pass has no use for, with those that it wants and their sizes.
  void forward(const AttentionProblem& problem, const NamedBuffers& buffers, RankTrace* trace = nullptr);
  void backward(const AttentionProblem& problem, const NamedBuffers& buffers, RankTrace* trace = nullptr);

 private:
  const Plan& plan(const AttentionProblem& problem, AttentionPass pass);
  void run(const AttentionProblem& problem, AttentionPass pass, const NamedBuffers& buffers,
           RankTrace* trace);

  Device& device_;
  const std::vector<Rank> ranks_;
  const Strategy strategy_;
  PlanCache& plans_;
  const AttentionOptions options_;
};

}  // namespace cp
