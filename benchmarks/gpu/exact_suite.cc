// Exact: attention by the project's own kernels, beside cuDNN's of the same sizes in bf16. There is no
// target: plans use these kernels where cuDNN has none (docs/attention.md), and kLeastCallFlops counts with
// their rate.
#include <string>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "shared/base/dtype.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"

namespace cp::benchmarks {
namespace {

constexpr std::int64_t kExactLen = 8'192, kExactHeads = 16, kExactHeadDim = 128;

Plan causal_plan(DType dtype, AttentionPass pass, const cp::Target& target) {
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = kExactLen;
  problem.q_heads = problem.kv_heads = kExactHeads;
  problem.head_dim = problem.v_head_dim = kExactHeadDim;
  problem.dtype = dtype;
  problem.causal = true;
  request.ranks = {0};
  return attention_plan(request, pass, 0, target);
}

void exact(benchmark::State& state, DType dtype, AttentionPass pass) {
  const cp::Target fused = runtime::gpu_target_of(0);
  cp::Target none = fused;
  none.fused_attention.reset();
  const Plan ours = causal_plan(dtype, pass, none), library = causal_plan(DType::bf16, pass, fused);
  const auto device = make_device(), other = make_device();
  PlanSession session(*device, ours), session_of_library(*other, library);
  upload_values(session), upload_values(session_of_library);
  constexpr int kRuns = 2;
  compare(
      state, [&] { return seconds_of_plan(*device, session, kRuns); },
      [&] { return seconds_of_plan(*other, session_of_library, kRuns); });
  const double pairs = static_cast<double>(kExactLen) * static_cast<double>(kExactLen) / 2;
  const double flops =
      pairs * static_cast<double>(kExactHeads * kExactHeadDim) * (pass == AttentionPass::backward ? 10 : 4);
  state.counters["Tflop/s"] = flops / (state.counters["ours_us"].value * 1e-6) * 1e-12;
}

}  // namespace

void register_exact() {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      const char* direction = pass == AttentionPass::forward ? "forward/" : "backward/";
      add_benchmark(str("Exact/", direction, name(dtype)), 5,
                    [=](benchmark::State& state) { exact(state, dtype, pass); });
    }
  }
}

}  // namespace cp::benchmarks
