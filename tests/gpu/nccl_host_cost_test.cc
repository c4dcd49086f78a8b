// What the host does for a step, for a collective and for a run of a kept plan, counted: the calls of CUDA
// and NCCL of the thread that calls run(), and its allocations outside of them. The libraries' own
// allocations, and those of the device's other thread, the watchdog, are not counted.
#ifdef CP_GPU_EMULATED

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_order.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention.h"
#include "shared/plan/builder.h"
#include "shared/plan/forwarding_device.h"
#include "shared/plan/prepared_plan.h"
#include "tests/emulated_gpu/call_counts.h"
#include "tests/emulated_gpu/emulated_stream.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/runtime/allocations.h"

namespace cp {
namespace {

using emulated::CallCounts;
using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::GpuJob;

enum class Kept { launched, traced, replayed };

NcclOptions options_for(const GpuJob& job, Rank rank, Kept kept) {
  NcclOptions options = job.options(rank);
  options.before_step = {};  // what it calls would count
  options.traces = kept == Kept::traced;
  options.graphs = kept == Kept::replayed;
  return options;
}

std::string to_text(const CallCounts& calls) {
  std::vector<std::string> parts;
  for (const auto& [function, count] : calls) parts.push_back(str(function, " ", count));
  return join(parts, ", ");
}

// Holds back what is on a stream behind it, so that no event has happened while the host enqueues.
class HeldBack {
 public:
  explicit HeldBack(const runtime::CudaStream& stream) {
    emulated::enqueue(stream.get(), [open = open_] {
      while (!*open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  ~HeldBack() { *open_ = true; }
  HeldBack(const HeldBack&) = delete;
  HeldBack& operator=(const HeldBack&) = delete;

 private:
  const std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

// What the host has done by the time that the call returns which enqueues a run's first kernel.
class UntilFirstKernel final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void launch(const StepRef& step, std::int64_t iteration) override {
    ForwardingDevice::launch(step, iteration);
    if (calls || is_collective(*step.step)) return;
    calls = emulated::calls_of_this_thread();
  }
  std::optional<CallCounts> calls;
};

struct Counted {
  CallCounts all, until_first_kernel;
  std::int64_t allocations = 0;  // of a whole run
};

// Of the third run: by then everything is connected, and captured if it is to be. Allocations are those of
// the fourth, since counting calls allocates.
Counted count_run(const GpuJob& job, Rank rank, const Plan& plan, Kept kept) {
  NcclDevice device(options_for(job, rank, kept));
  UntilFirstKernel watched(device);
  PreparedPlan prepared(watched, plan);
  const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
  for (int run = 0; run < 2; ++run) prepared.run({}, stream.get()).wait();
  auto gate = std::make_unique<HeldBack>(stream);
  watched.calls = {};
  const CallCounts before = emulated::calls_of_this_thread();
  prepared.run({}, stream.get());
  Counted counted;
  counted.all = emulated::since(before);
  if (watched.calls) counted.until_first_kernel = emulated::since(before, *watched.calls);
  gate.reset();
  prepared.last_run().wait();  // throws what went wrong
  const std::int64_t allocated = testing::allocations_of_this_thread();
  const PlanRun fourth = prepared.run({}, stream.get());
  counted.allocations = testing::allocations_of_this_thread() - allocated;
  fourth.wait();
  return counted;
}

class HostCost : public ::testing::Test {
 protected:
  void SetUp() override { testing::leave_out_allocations(emulated::is_inside); }
  void TearDown() override { testing::leave_out_allocations(nullptr); }

  // Of rank 0, while all others do the same.
  static Counted count(int ranks, Kept kept, const std::function<Plan(Rank)>& plan_of) {
    const GpuJob job(ranks);
    Counted counted;
    EXPECT_EQ(testing::run_gpu_ranks(ranks,
                                     [&](Rank rank) -> std::string {
                                       const Plan plan = plan_of(rank);
                                       const Counted own = count_run(job, rank, plan, kept);
                                       if (rank == 0) counted = own;
                                       return "";
                                     }),
              std::vector<std::string>(static_cast<std::size_t>(ranks)));
    return counted;
  }
  // What ten more of the steps cost that `add` adds.
  static std::string ten_more(int ranks, Kept kept,
                              const std::function<void(PlanBuilder&, Rank, int number)>& add) {
    const auto with = [&](int steps) {
      return count(ranks, kept, [&](Rank rank) {
        PlanBuilder b(rank, host_target());
        static_cast<void>(b.inout("x", DType::f32, 4));
        static_cast<void>(b.output("y", DType::f32, 4));
        for (int i = 0; i < steps; ++i) add(b, rank, i);
        return std::move(b).build({});
      });
    };
    return to_text(emulated::since(with(2).all, with(12).all));
  }
};

const View kCountedX = flat_view(0, 0, 4), kCountedY = flat_view(1, 0, 4);

TEST_F(HostCost, OfAKernelIsItsLaunchAndWithTracesAnEvent) {
  const auto add = [](PlanBuilder& b, Rank, int) { b.add(b.stream("main"), Scale{kCountedX, 1}); };
  EXPECT_EQ(ten_more(1, Kept::launched, add), "kernel 10");
  EXPECT_EQ(ten_more(1, Kept::traced, add),
            "cudaEventQuery 10, cudaEventRecord 10, cudaGetLastError 10, kernel 10");
  EXPECT_EQ(ten_more(1, Kept::replayed, add), "");
}

// A step that waits for one of another stream.
TEST_F(HostCost, OfAKernelOnAnotherStreamIsARecordAndAWaitMore) {
  const auto add = [](PlanBuilder& b, Rank, int number) {
    b.add(b.stream(number % 2 == 0 ? "first" : "second"), Scale{kCountedX, 1});
  };
  EXPECT_EQ(ten_more(1, Kept::launched, add), "cudaEventRecord 10, cudaStreamWaitEvent 10, kernel 10");
  EXPECT_EQ(ten_more(1, Kept::traced, add), "cudaEventRecord 20, cudaStreamWaitEvent 10, kernel 10");
}

TEST_F(HostCost, OfACollectiveIsItsCallsBetweenTwoEvents) {
  const auto reduce = [](PlanBuilder& b, Rank, int) {
    b.add(b.stream("main"), AllReduce{b.group("all", {0, 1}), ReduceOp::sum, kCountedX, kCountedX});
  };
  EXPECT_EQ(ten_more(2, Kept::launched, reduce), "cudaEventRecord 20, ncclAllReduce 10");
  EXPECT_EQ(ten_more(2, Kept::traced, reduce),
            "cudaEventQuery 10, cudaEventRecord 10, cudaGetLastError 10, ncclAllReduce 10");
  EXPECT_EQ(ten_more(2, Kept::replayed, reduce), "");
  const auto swap = [](PlanBuilder& b, Rank rank, int) {
    b.add(b.stream("main"), Exchange{.group = b.group("all", {0, 1}),
                                     .sends = {{1 - rank, kCountedX}},
                                     .recvs = {{1 - rank, kCountedY}},
                                     .counts = counts_digest({{.from = 0, .to = 1, .numel = 4},
                                                              {.from = 1, .to = 0, .numel = 4}})});
  };
  EXPECT_EQ(ten_more(2, Kept::launched, swap),
            "cudaEventRecord 20, ncclGroupEnd 10, ncclGroupStart 10, ncclRecv 10, ncclSend 10");
}

// ---- a ring of eight

AttentionProblem problem_of(DType dtype, std::int64_t tokens) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = tokens;
  problem.q_heads = 2, problem.kv_heads = 1;
  problem.head_dim = problem.v_head_dim = 16;
  problem.dtype = dtype, problem.causal = true;
  return problem;
}

AttentionRequest ring(DType dtype, int ranks) {
  AttentionRequest request;
  request.problem = problem_of(dtype, std::int64_t{4} * ranks);
  request.ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  request.strategy = named_strategy({"ring", {}, {}}, request.problem, ranks);
  request.strategy.balance = parse_balance("head_tail");  // so that every rank has a part in every step
  return request;
}

Counted count_ring_of_8(Kept kept) {
  const AttentionRequest request = ring(DType::bf16, 8);
  const GpuJob job(8);
  Counted counted;
  EXPECT_EQ(testing::run_gpu_ranks(8,
                                   [&](Rank rank) -> std::string {
                                     const Plan plan = attention_plan(request, AttentionPass::forward, rank,
                                                                      testing::target_of_the_gpus());
                                     const Counted own = count_run(job, rank, plan, kept);
                                     if (rank == 0) counted = own;
                                     return "";
                                   }),
            std::vector<std::string>(8));
  return counted;
}

// Its run begins with an event of the caller's stream, which the plan's first stream waits for, and another
// one that its other stream waits for. The first exchange comes between two events.
TEST_F(HostCost, OfARingOfEightUntilItsFirstKernel) {
  const Counted launched = count_ring_of_8(Kept::launched);
  EXPECT_EQ(to_text(launched.until_first_kernel),
            "cudaEventRecord 4, cudaStreamIsCapturing 1, cudaStreamWaitEvent 2, cudnn 1, ncclGroupEnd 1, "
            "ncclGroupStart 1, ncclRecv 2, ncclSend 2");
  EXPECT_EQ(to_text(launched.all),
            "cudaEventRecord 22, cudaStreamIsCapturing 1, cudaStreamWaitEvent 16, cudnn 8, kernel 11, "
            "ncclGroupEnd 7, ncclGroupStart 7, ncclRecv 14, ncclSend 14");
  EXPECT_EQ(launched.allocations, 0);
  const Counted traced = count_ring_of_8(Kept::traced);
  EXPECT_EQ(to_text(traced.until_first_kernel),
            "cudaEventRecord 6, cudaStreamIsCapturing 1, cudaStreamWaitEvent 2, cudnn 1, ncclGroupEnd 1, "
            "ncclGroupStart 1, ncclRecv 2, ncclSend 2");
  const Counted replayed = count_ring_of_8(Kept::replayed);
  EXPECT_EQ(to_text(replayed.all),
            "cudaEventRecord 3, cudaGraphLaunch 1, cudaStreamIsCapturing 1, cudaStreamWaitEvent 2");
  EXPECT_EQ(replayed.allocations, 0);
}

// ---- attention, run again and again

// Allocations in so many runs of both passes, whose outputs change by turns.
std::string runs_without_allocations(const GpuJob& job, Rank rank, DType dtype, Kept kept, int runs,
                                     std::int64_t& allocations) {
  constexpr int kUncounted = 100;
  NcclDevice device(options_for(job, rank, kept));
  const AttentionRequest request = ring(dtype, 2);
  PlanCache plans;
  ContextParallelAttention attention(device, request.ranks, request.strategy, plans);
  const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
  std::vector<void*> memory;
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    std::array<NamedBuffers, 2> buffers;
    for (NamedBuffers& named : buffers) {
      for (const auto& [name, bytes] : attention.buffer_bytes(request.problem, pass)) {
        CP_CUDA(cudaMalloc(&memory.emplace_back(), static_cast<std::size_t>(bytes)));
        CP_CUDA(cudaMemset(memory.back(), 0, static_cast<std::size_t>(bytes)));
        named[name] = memory.back();
      }
    }
    PreparedAttention prepared(attention, request.problem, pass, buffers[0]);
    const std::array<Bindings, 2> bound = {prepared.bind(buffers[0]), prepared.bind(buffers[1])};
    std::int64_t before = 0;
    PlanRun last;
    for (int run = 0; run < runs + kUncounted; ++run) {
      if (run == kUncounted) before = testing::allocations_of_this_thread();
      last = prepared.run(bound[static_cast<std::size_t>(run % 2)], stream.get());
      if (run % 50 == 0) last.wait();
    }
    allocations += testing::allocations_of_this_thread() - before;
    last.wait();
  }
  for (void* const data : memory) CP_CUDA(cudaFree(data));
  return "";
}

std::array<std::int64_t, 2> allocations_of(DType dtype, Kept kept, int runs) {
  const GpuJob job(2);
  std::array<std::int64_t, 2> allocations{};
  EXPECT_EQ(testing::run_gpu_ranks(2,
                                   [&](Rank rank) {
                                     return runs_without_allocations(
                                         job, rank, dtype, kept, runs,
                                         allocations[static_cast<std::size_t>(rank)]);
                                   }),
            testing::kNothing2);
  return allocations;
}

constexpr std::array<std::int64_t, 2> kNoAllocations{0, 0};

// Of each pass so many. Plans with less in them run ten thousand times (NcclKeptPlans), and attention over
// Gloo (KeptRuns).
TEST_F(HostCost, OfFiveThousandRunsOfARingIsNoAllocation) {
  EXPECT_EQ(allocations_of(DType::bf16, Kept::launched, 2'500), kNoAllocations);  // fused
}

TEST_F(HostCost, OfRunsOfTheExactKernelsAndOfGraphsIsNoAllocation) {
  EXPECT_EQ(allocations_of(DType::f32, Kept::launched, 300), kNoAllocations);
  EXPECT_EQ(allocations_of(DType::bf16, Kept::replayed, 300), kNoAllocations);
}

// Records of what was observed are kept, which takes memory: it grows in steps, and not by each run.
TEST_F(HostCost, OfRunsWithTracesIsTheMemoryOfTheirRecords) {
  constexpr int kRuns = 500;  // of each of two passes
  for (const std::int64_t allocations : allocations_of(DType::bf16, Kept::traced, kRuns))
    EXPECT_LT(allocations, kRuns);
}

}  // namespace
}  // namespace cp

#endif
