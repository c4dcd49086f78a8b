// A program of one's own on real processes: each rank holds a part of every sequence, of whatever length it
// is.
//
//   cprun --nproc-per-node 4 -- context_parallel
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

using Memory = std::map<std::string, std::vector<float>>;

// Memory for the buffers that a pass takes and that are not there yet, all set to `value`.
cp::NamedBuffers buffers(cp::ContextParallelAttention& attention, const cp::AttentionProblem& problem,
                         cp::AttentionPass pass, Memory& memory, float value) {
  cp::NamedBuffers named;
  for (const auto& [name, bytes] : attention.buffer_bytes(problem, pass)) {
    std::vector<float>& data = memory[name];
    if (data.empty()) data.resize(static_cast<std::size_t>(bytes) / sizeof(float), value);
    named[name] = data.data();
  }
  return named;
}

int run() {
  cp::runtime::Job job;
  std::vector<cp::Rank> ranks(static_cast<std::size_t>(job.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);

  cp::AttentionProblem problem;  // f32, [batch, seq, heads, head_dim]
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 16;
  problem.causal = true;
  problem.q_len = problem.kv_len = 100;
  const cp::Strategy ring = cp::named_strategy({"ring", {}, {}}, problem, job.world_size());
  cp::ContextParallelAttention attention(job.device(), ranks, ring, job.plans());

  bool right = true;
  for (const std::int64_t length : {100, 257, 64, 100}) {  // the last one finds its plans in the cache
    problem.q_len = problem.kv_len = length;
    Memory memory;
    attention.forward(problem, buffers(attention, problem, cp::AttentionPass::forward, memory, 1));
    attention.backward(problem, buffers(attention, problem, cp::AttentionPass::backward, memory, 1));
    // Means of ones are ones.
    for (const float x : memory["out"]) right &= x > 0.999F && x < 1.001F;
  }

  // And rows become columns.
  const cp::Mesh mesh({{"cp", job.world_size()}});
  const cp::Layout rows = cp::parse_layout("S(0)", mesh, {8, 8}, cp::DType::f32);
  const cp::Layout columns = cp::parse_layout("S(1)", mesh, {8, 8}, cp::DType::f32);
  const std::int64_t in_bytes = cp::local_bytes(rows, job.rank()),
                     out_bytes = cp::local_bytes(columns, job.rank());
  std::vector<float> in(static_cast<std::size_t>(in_bytes) / sizeof(float), static_cast<float>(job.rank()));
  std::vector<float> out(static_cast<std::size_t>(out_bytes) / sizeof(float));
  job.redistribute(cp::from_local(rows, job.rank(), in.data(), in_bytes),
                   cp::from_local(columns, job.rank(), out.data(), out_bytes));
  if (!out.empty()) right &= out.front() == 0;  // from rank 0

  if (job.rank() == 0)
    std::printf("%d ranks, %zu plans kept: %s\n", job.world_size(), job.plans().size(),
                right ? "right" : "WRONG");
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
