// What a ring's plans for a GPU move beside their attention calls: bytes, and the share of the time that the
// calls keep.
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "sim/cost/timeline/kernel_cost.h"

namespace cp::testing {
namespace {

struct RingPass {
  AttentionPass pass;
  const char* balance;
};

// Rank 3 of 4, as the benchmark of the GPU has it (benchmarks/gpu/ring_suite.cc).
Plan plan_of(const RingPass& ring) {
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = 32'768;
  problem.q_heads = problem.kv_heads = 16;
  problem.head_dim = problem.v_head_dim = 128;
  problem.dtype = DType::bf16, problem.causal = true;
  request.ranks = {0, 1, 2, 3};
  request.strategy.core = Core::ring;
  request.strategy.balance = parse_balance(ring.balance);
  return attention_plan(request, ring.pass, 3, gpu_target("sm90"));
}

struct Tally {
  double flops = 0, bytes = 0;  // of attention calls; of the kernels beside them
};
Tally tally(const Plan& plan) {
  Tally sum;
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    if (kernel == nullptr) continue;
    const sim::KernelWork work = sim::work_of(*kernel, plan);
    if (std::holds_alternative<AttentionForward>(*kernel) ||
        std::holds_alternative<AttentionBackward>(*kernel)) {
      sum.flops += work.flops;
    } else {
      sum.bytes += work.bytes;
    }
  }
  return sum;
}

// An H100's copies move about 2.6 TB/s, and its best kernels do 700 Tflop/s forward and 550 backward: with
// slower ones the share rises.
double share(const Tally& tally, AttentionPass pass) {
  const double attention = tally.flops / (pass == AttentionPass::forward ? 700e12 : 550e12),
               moves = tally.bytes / 2.6e12;
  return attention / (attention + moves);
}

TEST(MovedBytes, AttentionKeepsItsShareOfARing) {
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    for (const char* balance : {"contiguous", "head_tail"}) {
      const Tally moved = tally(plan_of({pass, balance}));
      const std::string name = str(pass == AttentionPass::forward ? "forward_" : "backward_", balance);
      RecordProperty(name + "_megabytes", str(moved.bytes / 1e6));
      RecordProperty(name + "_share", str(share(moved, pass)));
      EXPECT_GE(share(moved, pass), 0.92) << name << ": " << moved.bytes / 1e6 << " MB";
    }
  }
}

}  // namespace
}  // namespace cp::testing
