// Ring: one rank of four on a ring, transfers replaced by copies of its own blocks, beside its attention steps alone.
#include <algorithm>
#include <string>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"

namespace cp::benchmarks {
namespace {

// The plan's steps for which `replace` gives some work, without groups; edges of the others are gone. Temporary memory becomes the
// caller's, who gives it values: what would have come from other ranks is there.
Plan replaced(const Plan& plan, const std::function<std::vector<Work>(const Work&)>& replace) {
  Plan made = plan;
  made.groups.clear(), made.segments.clear();
  std::vector<StepId> last;  // that a step became, by its id; -1: none
  StepId next = 0;
  const auto translate = [&](const Step& step) {
    std::vector<Step> steps;
    std::vector<Edge> after;
    for (const Edge& edge : step.after) {
      if (edge.iterations_back == 0 && last[static_cast<std::size_t>(edge.step)] >= 0)
        after.push_back({last[static_cast<std::size_t>(edge.step)], 0});
    }
    for (Work& work : replace(step.work)) {
      steps.push_back({step.stream, std::move(work), after, step.label});
      ++next;
    }
    last.push_back(steps.empty() ? -1 : next - 1);
    return steps;
  };
  for (const Segment& segment : plan.segments) {
    const Step* one = std::get_if<Step>(&segment);
    CP_INVARIANT(one != nullptr, "attention plans have no Repeat");
    for (Step& step : translate(*one)) made.segments.emplace_back(std::move(step));
  }
  for (Buffer& buffer : made.buffers) {
    buffer.first_use = buffer.last_use = -1;
    if (buffer.kind == BufferKind::temporary) buffer.kind = BufferKind::inout, buffer.offset_bytes = 0;
  }
  made.arena_bytes = 0;
  return made;
}

std::vector<Work> as_copies(const Plan& plan, const Work& work) {
  const Collective* collective = std::get_if<Collective>(&work);
  if (collective == nullptr) return {work};
  std::vector<Work> copies;
  const auto dtype = [&](const View& view) {
    return plan.buffers[static_cast<std::size_t>(view.buffer)].dtype;
  };
  if (const Exchange* exchange = std::get_if<Exchange>(collective)) {
    for (std::size_t i = 0; i < std::min(exchange->sends.size(), exchange->recvs.size()); ++i) {
      const View &from = exchange->sends[i].view, &to = exchange->recvs[i].view;
      if (from.numel() == to.numel() && dtype(from) == dtype(to)) copies.push_back(Kernel(Copy{from, to}));
    }
  }
  return copies;
}

bool is_attention(const Work& work) {
  const Kernel* kernel = std::get_if<Kernel>(&work);
  return kernel != nullptr && (std::holds_alternative<AttentionForward>(*kernel) ||
                               std::holds_alternative<AttentionBackward>(*kernel));
}

void ring(benchmark::State& state, AttentionPass pass, const char* balance) {
  constexpr Rank kSelf = 3;
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = 32'768;
  problem.q_heads = problem.kv_heads = 16;
  problem.head_dim = problem.v_head_dim = 128;
  problem.dtype = DType::bf16;
  problem.causal = true;
  request.ranks = {0, 1, 2, 3};
  request.strategy.core = Core::ring;
  request.strategy.balance = parse_balance(balance);
  const Plan whole = attention_plan(request, pass, kSelf, runtime::gpu_target_of(0));
  const Plan plan = replaced(whole, [&](const Work& work) { return as_copies(whole, work); });
  const Plan alone = replaced(whole, [&](const Work& work) {
    return is_attention(work) ? std::vector<Work>{work} : std::vector<Work>{};
  });
  const auto device = make_device(kSelf), other = make_device(kSelf);
  device->prepare(plan, {}), other->prepare(alone, {});
  upload_values(*device, plan), upload_values(*other, alone);
  constexpr int kRuns = 3;
  compare(
      state, [&] { return seconds_of_plan(*device, plan, kRuns); },
      [&] { return seconds_of_plan(*other, alone, kRuns); });
}

}  // namespace

void register_ring() {
  for (const char* balance : {"contiguous", "head_tail"}) {
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      const char* direction = pass == AttentionPass::forward ? "forward/" : "backward/";
      benchmark::RegisterBenchmark(str("Ring/", direction, balance).c_str(),
                                   [=](benchmark::State& state) { ring(state, pass, balance); })
          ->UseManualTime()
          ->Iterations(21);
    }
  }
}

}  // namespace cp::benchmarks
