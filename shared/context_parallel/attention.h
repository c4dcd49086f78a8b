// ContextParallelAttention: attention over a sequence that is split across ranks, on the caller's buffers and
// any Device.
//
//   const Strategy strategy = named_strategy({"ring", {}, {}}, problem, 4);
//   ContextParallelAttention attention(device, {0, 1, 2, 3}, strategy, cache);
//   attention.forward(problem, {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}});
//   attention.backward(problem, {{"dout", dout}, ..., {"dq", dq}, {"dk", dk}, {"dv", dv}});
//
// With {.gradients = {.dk = false, .dv = false}} the backward pass makes only dq. The lse that a rank gets is
// that of its own rows, like out; with {.lse = LsePlace::computed} it stays where it was computed.
//
// attention_plan.h says which buffers there are: their names, parts and formats. Plans are made for the
// device's target, so that a GPU's library computes every mask that it supports. The caller's cache keeps the
// plans of all lengths that come by.
//
// The device keeps the passes that were run last ready, so that a pass of a length that it has seen prepares
// nothing; the call finds it by the digest of the problem, and its buffers by their names. forward() and
// backward() return when the device is done; on a GPU, a pass begins behind everything that is on the stream
// `caller`, CUDA's default stream unless the program names another.
//
// A program that has work of its own on the device keeps a pass ready itself, and goes on at once; each run
// takes its place in a stream of that program (prepared_plan.h):
//
//   const NamedBuffers buffers = {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}};
//   PreparedAttention forward(attention, problem, AttentionPass::forward, buffers);
//   const Bindings bound = forward.bind(buffers);  // finds the names once; one for each set of buffers
//   forward.run(bound, stream);
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/device.h"
#include "shared/plan/plan_cache.h"
#include "shared/plan/prepared_plan.h"
#include "shared/plan/prepared_plans.h"
#include "shared/plan/trace.h"

namespace cp {

// Addresses of the device's memory, by the buffer's name. The caller owns the memory.
using NamedBuffers = std::map<std::string, void*, std::less<>>;

class ContextParallelAttention {
 public:
  // The device and the cache must outlive this object, whose last passes the device keeps. `ranks` are the cp
  // ranks in order, and the device's rank is one of them. `options` says what the passes compute; it must be
  // the same on all ranks.
  ContextParallelAttention(Device& device, std::vector<Rank> ranks, Strategy strategy, PlanCache& plans,
                           AttentionOptions options = {});

  // How many bytes each buffer has that this rank's caller gives to a pass, by name.
  std::map<std::string, std::int64_t> buffer_bytes(const AttentionProblem& problem, AttentionPass pass);

  // These are collective calls over the ranks, and return when the device is done. They throw InvalidInput if
  // the strategy cannot compute the problem, and if a buffer is missing or has no use in the pass; the
  // message lists the buffers that are wanted, with their sizes. If `trace` is given, what the executor
  // launches is recorded in it.
  void forward(const AttentionProblem& problem, const NamedBuffers& buffers, RankTrace* trace = nullptr,
               CallerStream caller = nullptr);
  void backward(const AttentionProblem& problem, const NamedBuffers& buffers, RankTrace* trace = nullptr,
                CallerStream caller = nullptr);

 private:
  friend class PreparedAttention;
  Digest key(const AttentionProblem& problem, AttentionPass pass) const;
  const Plan& plan(const Digest& key, const AttentionProblem& problem, AttentionPass pass);
  PlanRun run(const AttentionProblem& problem, AttentionPass pass, const NamedBuffers& buffers,
              RankTrace* trace, CallerStream caller);

  Device& device_;
  const std::vector<Rank> ranks_;
  const Strategy strategy_;
  PlanCache& plans_;
  const AttentionOptions options_;
  Bindings bindings_;  // filled anew by each run
  PreparedPlans prepared_;
};

// One pass of one problem that the device keeps ready. It has a plan of its own, and memory of its own for
// the plan's temporaries.
class PreparedAttention {
 public:
  // A collective call over the ranks, as PreparedPlan's constructor, with its errors and those of forward().
  // `buffers` are those of the first run. The device of `attention` must outlive this object; `attention`
  // need not.
  PreparedAttention(ContextParallelAttention& attention, const AttentionProblem& problem, AttentionPass pass,
                    const NamedBuffers& buffers, LaneId lane = 0);

  // The buffers as bindings, by the names that each has in the plan. Throws InvalidInput if a buffer is
  // missing or has no use in the pass.
  Bindings bind(const NamedBuffers& buffers) const;

  // Enqueues the pass and returns, as PreparedPlan::run() does. Each buffer in `changed` is bound anew, for
  // this run and those after it; it is a part of what bind() returned, or all of it. No text is looked up
  // here.
  PlanRun run(const Bindings& changed, CallerStream caller = nullptr, RankTrace* trace = nullptr);
  // The same in one call that binds by name: run(bind(buffers), ...).
  PlanRun run(const NamedBuffers& buffers, CallerStream caller = nullptr, RankTrace* trace = nullptr);

  const Plan& plan() const { return plan_; }

 private:
  const Plan plan_;
  PreparedPlan prepared_;
};

}  // namespace cp
