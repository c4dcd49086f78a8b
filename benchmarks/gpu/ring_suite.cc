// Ring: one rank of four on a ring, transfers replaced by copies inside of its GPU, beside its attention
// steps alone.
//
// Without collectives NcclDevice gives the stream of the transfers normal priority, where in a real run it
// has the high one (choose_streams): a copy waits until blocks of the attention beside it have ended, and
// what waits for the copy with it. So the share here is by a few percent too low rather than too high.
//
// RunStart: what the host spends on a prepared run of a ring of 8 steps, from the call of run() until the
// call returns that launches its first attention; at most 60 us are wanted. For a graph, until the call of
// run() returns, which launches all of it. Of the transfers, which a real run may issue before its first
// attention, it has the copies, and not what NCCL's calls cost beside those (tests/gpu/nccl_host_cost_test.cc
// counts them).
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "runtime/cuda/cuda_streams.h"
#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/forwarding_device.h"
#include "shared/plan/prepared_plan.h"

namespace cp::benchmarks {
namespace {

// The plan's steps for which `replace` gives some work, without groups; edges of the others are gone.
// Temporary memory becomes the caller's, who gives it values: what would have come from other ranks is there.
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

// Transfers as copies: what a rank sends goes to what it receives. Where one side has no other (the last rank
// of a contiguous causal ring sends no keys, and in the end receives no gradients) a buffer beside the plan's
// stands in for the other rank's memory, so that each transfer costs the GPU a read and a write.
class Transfers {
 public:
  explicit Transfers(Plan& plan) : plan_(plan) {
    std::map<DType, std::int64_t> longest;
    for (const Segment& segment : plan.segments) {
      const Step* step = std::get_if<Step>(&segment);
      if (step == nullptr || !std::holds_alternative<Collective>(step->work)) continue;
      const Exchange& exchange = exchange_of(std::get<Collective>(step->work));
      for (const auto* side : {&exchange.sends, &exchange.recvs}) {
        for (const Transfer& transfer : *side)
          longest[dtype(transfer.view)] = std::max(longest[dtype(transfer.view)], transfer.view.numel());
      }
    }
    for (const auto& [dtype, numel] : longest) {
      elsewhere_[dtype] = static_cast<BufferId>(plan.buffers.size());
      Buffer buffer;
      buffer.name = str("elsewhere, ", name(dtype)), buffer.kind = BufferKind::inout;
      buffer.dtype = dtype, buffer.numel = numel;
      plan.buffers.push_back(std::move(buffer));
    }
  }

  std::vector<Work> as_copies(const Work& work) const {
    const Collective* collective = std::get_if<Collective>(&work);
    if (collective == nullptr) return {work};
    const auto& [group, sends, recvs, counts] = exchange_of(*collective);
    std::vector<Work> copies;
    const auto copy = [&](const View& from, const View& to) { copies.push_back(Kernel(Copy{from, to})); };
    for (std::size_t i = 0; i < std::max(sends.size(), recvs.size()); ++i) {
      const View *from = i < sends.size() ? &sends[i].view : nullptr,
                 *to = i < recvs.size() ? &recvs[i].view : nullptr;
      if (from != nullptr && to != nullptr && from->shape == to->shape && dtype(*from) == dtype(*to)) {
        copy(*from, *to);
        continue;
      }
      if (from != nullptr) copy(*from, elsewhere(*from));
      if (to != nullptr) copy(elsewhere(*to), *to);
    }
    return copies;
  }

 private:
  static const Exchange& exchange_of(const Collective& collective) {
    const Exchange* exchange = std::get_if<Exchange>(&collective);
    CP_INVARIANT(exchange != nullptr, "a ring has no other collective");
    return *exchange;
  }
  DType dtype(const View& view) const { return plan_.buffers[static_cast<std::size_t>(view.buffer)].dtype; }
  View elsewhere(const View& like) const { return dense_view(elsewhere_.at(dtype(like)), 0, like.shape); }

  Plan& plan_;
  std::map<DType, BufferId> elsewhere_;
};

bool is_attention(const Work& work) {
  const Kernel* kernel = std::get_if<Kernel>(&work);
  return kernel != nullptr && (std::holds_alternative<AttentionForward>(*kernel) ||
                               std::holds_alternative<AttentionBackward>(*kernel));
}

constexpr Rank kSelf = 3;

AttentionRequest ring_request(std::int64_t tokens, int ranks, const char* balance) {
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = tokens;
  problem.q_heads = problem.kv_heads = 16;
  problem.head_dim = problem.v_head_dim = 128;
  problem.dtype = DType::bf16;
  problem.causal = true;
  for (Rank rank = 0; rank < ranks; ++rank) request.ranks.push_back(rank);
  request.strategy.core = Core::ring;
  request.strategy.balance = parse_balance(balance);
  return request;
}

void ring(benchmark::State& state, AttentionPass pass, const char* balance) {
  const AttentionRequest request = ring_request(32'768, 4, balance);
  Plan whole = attention_plan(request, pass, kSelf, runtime::gpu_target_of(0));
  const Transfers transfers(whole);
  const Plan plan = replaced(whole, [&](const Work& work) { return transfers.as_copies(work); });
  const Plan alone = replaced(whole, [&](const Work& work) {
    return is_attention(work) ? std::vector<Work>{work} : std::vector<Work>{};
  });
  const auto device = make_device(kSelf), other = make_device(kSelf);
  PlanSession session(*device, plan), session_alone(*other, alone);
  upload_values(session), upload_values(session_alone);
  constexpr int kRuns = 3;
  compare(
      state, [&] { return seconds_of_plan(*device, session, kRuns); },
      [&] { return seconds_of_plan(*other, session_alone, kRuns); });
}

// The device, and when the first attention of a run had been launched.
class FirstAttention final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void begin() { launched_.reset(); }
  std::chrono::steady_clock::time_point launched() const { return launched_.value(); }

  void launch(const StepRef& step, std::int64_t iteration) override {
    ForwardingDevice::launch(step, iteration);
    if (!launched_ && is_attention(step.step->work)) launched_ = std::chrono::steady_clock::now();
  }

 private:
  std::optional<std::chrono::steady_clock::time_point> launched_;
};

void run_start(benchmark::State& state, AttentionPass pass, bool graph) {
  const AttentionRequest request = ring_request(std::int64_t{8} * 512, 8, "head_tail");
  Plan whole = attention_plan(request, pass, kSelf, runtime::gpu_target_of(0));
  const Transfers transfers(whole);
  const Plan plan = replaced(whole, [&](const Work& work) { return transfers.as_copies(work); });
  const auto device = make_device(kSelf, {.traces = false, .graphs = graph});
  FirstAttention watched(*device);
  PreparedPlan prepared(watched, plan);
  const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
  for (int warm_up = 0; warm_up < 3; ++warm_up) prepared.run({}, stream.get()).wait();
  std::vector<double> seconds;
  for (auto _ : state) {
    watched.begin();
    const auto begin = std::chrono::steady_clock::now();
    const PlanRun run = prepared.run({}, stream.get());
    const auto returned = std::chrono::steady_clock::now();
    const std::chrono::duration<double> taken = (graph ? returned : watched.launched()) - begin;
    seconds.push_back(taken.count());
    state.SetIterationTime(taken.count());
    run.wait();
  }
  const runtime::GraphUse& use = device->graph_use();
  if (graph && use.replayed == 0) throw CheckFailure(str("nothing was replayed: ", join(use.refused, "; ")));
  state.counters["us/run"] = median(seconds) * 1e6;
  state.counters["limit_us"] = 60;
}

}  // namespace

void register_ring() {
  for (const char* balance : {"contiguous", "head_tail"}) {
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      const char* direction = pass == AttentionPass::forward ? "forward/" : "backward/";
      add_benchmark(str("Ring/", direction, balance), 21,
                    [=](benchmark::State& state) { ring(state, pass, balance); });
    }
  }
  for (const bool graph : {false, true}) {
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      const char* direction = pass == AttentionPass::forward ? "forward" : "backward";
      add_benchmark(str("RunStart/", graph ? "graph/" : "", direction), 200,
                    [=](benchmark::State& state) { run_start(state, pass, graph); });
    }
  }
}

}  // namespace cp::benchmarks
