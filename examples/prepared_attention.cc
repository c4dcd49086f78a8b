// Attention between computations of a program's own, step after step: both passes are kept ready, and each
// run takes its place behind what the program has enqueued.
//
//   cprun --nproc-per-node 4 -- prepared_attention
//
// Over Gloo the program computes on the host, so it waits for a run before it reads what the run wrote. On a
// GPU it would give its CUDA stream to run() and wait for nothing.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/job.h"
#include "runtime/launcher/exit_code.h"
#include "shared/base/error.h"
#include "shared/context_parallel/attention.h"

namespace {

constexpr int kSteps = 5;

int run() {
  cp::runtime::Job job;
  std::vector<cp::Rank> ranks(static_cast<std::size_t>(job.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);

  cp::AttentionProblem problem;  // f32, [batch, seq, heads, head_dim]
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 16;
  problem.causal = true;
  problem.q_len = problem.kv_len = 103;
  const cp::Strategy ring = cp::named_strategy({"ring", {}, {}}, problem, job.world_size());
  cp::ContextParallelAttention attention(job.device(), ranks, ring, job.plans());

  std::map<std::string, std::vector<float>> memory;
  const auto named = [&](cp::AttentionPass pass) {
    cp::NamedBuffers buffers;
    for (const auto& [name, bytes] : attention.buffer_bytes(problem, pass)) {
      memory[name].resize(static_cast<std::size_t>(bytes) / sizeof(float));
      buffers[name] = memory[name].data();
    }
    return buffers;
  };
  const cp::NamedBuffers in_forward = named(cp::AttentionPass::forward),
                         in_backward = named(cp::AttentionPass::backward);
  cp::PreparedAttention forward(attention, problem, cp::AttentionPass::forward, in_forward);
  cp::PreparedAttention backward(attention, problem, cp::AttentionPass::backward, in_backward);

  bool right = true;
  for (int step = 1; step <= kSteps; ++step) {
    // The program's own work before attention: here all values of a step are the same number.
    const auto value = static_cast<float>(step);
    for (const char* name : {"q", "k", "v"}) std::fill(memory[name].begin(), memory[name].end(), value);
    const cp::PlanRun attended = forward.run(in_forward);
    // Work that does not need the output may be done here, while the pass runs.
    std::fill(memory["dout"].begin(), memory["dout"].end(), 1.0F);
    attended.wait();
    for (const float x : memory["out"]) right &= x > 0.999F * value && x < 1.001F * value;
    backward.run(in_backward).wait();
    // Keys that are all alike get no gradient, and what queries give to values is given out as a whole.
    for (const float x : memory["dk"]) right &= x > -0.01F && x < 0.01F;
  }
  if (job.rank() == 0)
    std::printf("%d ranks, %d steps: %s\n", job.world_size(), kSteps, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const cp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return cp::runtime::exit_code(error.kind());
  }
}
