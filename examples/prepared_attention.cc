// Attention between kernels of a program's own, step after step: both passes are kept ready, and each run
// takes its place behind what the program has enqueued.
//
//   cprun --nproc-per-node 4 -- prepared_attention
//   cprun --nproc-per-node 4 --backend nccl -- prepared_attention
//
// The program moves q, k and v so that attention gives what it wants. A step is
//
//   attention forward - gradient of the loss (own) - attention backward - q, k, v descend (own)
//
// On a GPU the host enqueues all steps and waits once, at the end. Over Gloo it computes the two own parts
// itself, and waits before each. With --trace FILE both leave the same trace.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "examples/own_kernels.h"
#include "runtime/job.h"
#include "runtime/launcher/exit_code.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "shared/context_parallel/attention.h"

namespace {

constexpr int kSteps = 5;
constexpr float kRate = 0.05F;

// Numbers from -1 to 1 that differ by rank, buffer and place, and are the same in each run.
std::vector<float> numbers(std::int64_t count, cp::Rank rank, std::uint32_t buffer) {
  std::uint32_t state = buffer * 1000003U + static_cast<std::uint32_t>(rank) * 7919U + 1;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;  // a generator of Knuth's
    value = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return values;
}

// The buffers of both passes, by name. Those of one name are one.
class Buffers {
 public:
  explicit Buffers(OwnKernels& kernels) : kernels_(kernels) {}

  cp::NamedBuffers of(cp::ContextParallelAttention& attention, const cp::AttentionProblem& problem,
                      cp::AttentionPass pass) {
    cp::NamedBuffers named;
    for (const auto& [name, bytes] : attention.buffer_bytes(problem, pass)) {
      counts_[name] = bytes / static_cast<std::int64_t>(sizeof(float));
      if (!data_.contains(name)) data_[name] = kernels_.allocate(counts_[name]);
      named[name] = data_[name];
    }
    return named;
  }
  float* data(const std::string& name) const { return data_.at(name); }
  std::int64_t count(const std::string& name) const { return counts_.at(name); }

 private:
  OwnKernels& kernels_;
  std::map<std::string, float*> data_;
  std::map<std::string, std::int64_t> counts_;
};

// The loss of each step, of all ranks together: 0.5 * the sum of the squared errors.
std::vector<double> total_losses(cp::runtime::Job& job, const std::vector<float>& errors) {
  std::array<double, kSteps> own{}, others{};
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const auto error = static_cast<double>(errors[i]);
    own[i / (errors.size() / kSteps)] += 0.5 * error * error;
  }
  std::vector<double> total(kSteps);
  const std::string_view bytes(reinterpret_cast<const char*>(own.data()), sizeof(own));
  for (const std::string& of_rank : job.rendezvous().all_gather("losses", bytes)) {
    std::memcpy(others.data(), of_rank.data(), sizeof(others));
    for (std::size_t step = 0; step < kSteps; ++step) total[step] += others[step];
  }
  return total;
}

int run() {
  cp::runtime::Job job;
#ifdef CP_HAVE_NCCL
  const std::unique_ptr<OwnKernels> kernels =
      job.host_memory() ? own_kernels_of_host() : own_kernels_of_gpu();
#else
  const std::unique_ptr<OwnKernels> kernels = own_kernels_of_host();
#endif
  std::vector<cp::Rank> ranks(static_cast<std::size_t>(job.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);

  cp::AttentionProblem problem;  // f32, [batch, seq, heads, head_dim]
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 16;
  problem.causal = true;
  problem.q_len = problem.kv_len = 103;
  const cp::Strategy ring = cp::named_strategy({"ring", {}, {}}, problem, job.world_size());
  cp::ContextParallelAttention attention(job.device(), ranks, ring, job.plans());

  Buffers buffers(*kernels);
  const cp::NamedBuffers in_forward = buffers.of(attention, problem, cp::AttentionPass::forward),
                         in_backward = buffers.of(attention, problem, cp::AttentionPass::backward);
  const std::int64_t outputs = buffers.count("out");
  float* const want = kernels->allocate(outputs);
  float* const errors = kernels->allocate(kSteps * outputs);
  std::uint32_t number = 0;
  for (const char* name : {"q", "k", "v"})
    kernels->upload(buffers.data(name), numbers(buffers.count(name), job.rank(), ++number));
  kernels->upload(want, numbers(outputs, job.rank(), ++number));

  // Once, on all ranks: this connects them and builds what the passes need.
  cp::PreparedAttention forward(attention, problem, cp::AttentionPass::forward, in_forward);
  cp::PreparedAttention backward(attention, problem, cp::AttentionPass::backward, in_backward);

  cp::PlanRun last;
  for (int step = 0; step < kSteps; ++step) {
    kernels->before_own_work(forward.run(in_forward, kernels->stream()));
    kernels->gradient_of_loss(buffers.data("out"), want, buffers.data("dout"), errors + step * outputs,
                              outputs);
    last = backward.run(in_backward, kernels->stream());
    kernels->before_own_work(last);
    for (const char* name : {"q", "k", "v"})
      kernels->descend(buffers.data(name), buffers.data(std::string("d") + name), kRate, buffers.count(name));
  }

  // Here alone a program on a GPU waits, and here it learns of an error of any run.
  last.wait();
  const std::vector<double> losses = total_losses(job, kernels->download(errors, kSteps * outputs));
  const bool falls = std::adjacent_find(losses.begin(), losses.end(), std::less_equal<>()) == losses.end();
  if (job.rank() == 0) {
    std::printf("losses:");
    for (const double loss : losses) std::printf(" %.9g", loss);
    std::printf("\n%d ranks, %d steps: %s\n", job.world_size(), kSteps, falls ? "right" : "WRONG");
  }
  return falls ? 0 : 1;
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
