// Runs of kept plans as CUDA graphs (NcclOptions::graphs): they give what launched runs give and leave the
// same traces, and what goes wrong in them is told as it is of launched ones.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/errors.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/step_times.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "shared/plan/prepared_plan.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/attention_tolerance.h"
#include "tests/gpu/gpu_processes.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/gpu/slow_steps.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/emulated_stream.h"
#endif

namespace cp {
namespace {

using runtime::GraphUse;
using runtime::NcclDevice;
using runtime::NcclOptions;
using testing::GpuJob;
using testing::kNothing2;
using testing::lacks;

constexpr std::int64_t kGraphNumel = 33, kGraphBytes = 4 * kGraphNumel;

// y = twice the sum of all ranks' x; the sum is made on another stream than the rest. With `repeats` it is
// made so often.
Plan twice_the_sum(Rank rank, const std::string& group, int repeats = 1) {
  PlanBuilder b(rank, host_target());
  const View x = flat_view(b.input("x", DType::f32, kGraphNumel), 0, kGraphNumel);
  const View y = flat_view(b.output("y", DType::f32, kGraphNumel), 0, kGraphNumel);
  const View sum = flat_view(b.temporary("sum", DType::f32, kGraphNumel), 0, kGraphNumel);
  const StreamId compute = b.stream("compute"), comm = b.stream("comm");
  const GroupId all = b.group(group, {0, 1});
  for (int i = 0; i < repeats; ++i) b.add(comm, AllReduce{all, ReduceOp::sum, x, sum});
  b.add(compute, Copy{sum, y});
  b.add(compute, Scale{y, 2});
  return std::move(b).build({});
}
constexpr BufferId kGraphX = 0, kGraphY = 1;

NcclOptions with_graphs(NcclOptions options, bool traces = true) {
  options.graphs = true;
  options.traces = traces;
  return options;
}

std::string to_text(const GraphUse& use) {
  return str(use.launched, " launched, ", use.captured, " captured, ", use.replayed, " replayed; ",
             join(use.refused, "; "));
}

// Memory of the GPU.
class GraphFloats {
 public:
  explicit GraphFloats(float value = 0) {
    CP_CUDA(cudaMalloc(&data_, kGraphBytes));
    const std::vector<float> values(kGraphNumel, value);
    CP_CUDA(cudaMemcpy(data_, values.data(), kGraphBytes, cudaMemcpyHostToDevice));
  }
  ~GraphFloats() { static_cast<void>(cudaFree(data_)); }
  GraphFloats(const GraphFloats&) = delete;
  GraphFloats& operator=(const GraphFloats&) = delete;
  void* data() const { return data_; }
  // Whether all values are this one.
  bool has(float value) const {
    std::vector<float> values(kGraphNumel);
    CP_CUDA(cudaMemcpy(values.data(), data_, kGraphBytes, cudaMemcpyDeviceToHost));
    return values == std::vector<float>(kGraphNumel, value);
  }

 private:
  void* data_ = nullptr;
};

// What f throws; empty if nothing.
template <class F>
std::string thrown_by(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// ---- the same results and traces

struct Left {  // by runs of attention
  std::vector<OpRecord> issued, observed;
  std::vector<TimedOp> times;
  GraphUse use;
};

constexpr int kAttentionRuns = 5;

// Both passes, each so often; what the results lack is in `wrong`.
Left attend_both_ways(const GpuJob& job, Rank rank, const AttentionRequest& request, bool graphs,
                      std::string& wrong) {
  NcclOptions options = job.options(rank);
  options.graphs = graphs;
  NcclDevice device(options);
  const sim::AttentionTestData data(request.problem, 7);
  const sim::AttentionShards shards(data, request);
  const auto tolerances = sim::attention_tolerances(data, request, true, device.target());
  sim::RankBuffers memory;
  Left left;
  RankTrace trace;
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const Plan plan = attention_plan(request, pass, rank, device.target());
    shards.bind(pass, plan, memory);
    PreparedPlan prepared(device, plan);
    const auto for_each = [&](const auto& visit) {
      for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
        if (plan.buffers[i].kind != BufferKind::temporary)
          visit(static_cast<BufferId>(i), memory.at(plan.buffers[i].name));
      }
    };
    for (int run = 0; run < kAttentionRuns; ++run) {
      for_each([&](BufferId id, std::vector<std::byte>& bytes) { prepared.upload(id, bytes); });
      prepared.run({}, nullptr, &trace);
    }
    for_each([&](BufferId id, std::vector<std::byte>& bytes) { prepared.download(id, bytes); });
    for (const auto& [tensor, error] : shards.compare(pass, plan, memory, tolerances)) {
      if (!error.holds()) wrong += str(error.tensor, ": ", error.finding, "; ");
    }
  }
  left.issued = std::move(trace.issued);
  left.observed = device.take_observed();
  left.times = device.take_times().steps;
  left.use = device.graph_use();
  return left;
}

std::string compare_attention(const GpuJob& launched_job, const GpuJob& graph_job, Rank rank, DType dtype,
                              const std::vector<Rank>& ranks, const char* strategy) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 29;
  request.problem.q_heads = 4, request.problem.kv_heads = 2;
  request.problem.head_dim = request.problem.v_head_dim = 16;
  request.problem.dtype = dtype, request.problem.causal = true;
  request.ranks = ranks;
  request.strategy = named_strategy({strategy, {}, {}}, request.problem, static_cast<int>(ranks.size()));
  std::string wrong;
  const Left launched = attend_both_ways(launched_job, rank, request, false, wrong);
  const Left replayed = attend_both_ways(graph_job, rank, request, true, wrong);
  if (!wrong.empty()) return wrong;
  if (replayed.issued != launched.issued) return "other records of what was issued";
  if (replayed.observed != launched.observed) return "other records of what was observed";
  if (replayed.times.size() != launched.times.size()) return "another number of times";
  const GraphUse& use = replayed.use;
  if (use.launched != 2 || use.captured != 2 || use.replayed != 2LL * (kAttentionRuns - 2))
    return to_text(use);
  // Of the first run each step has times of its own.
  const auto of_graph = [](const TimedOp& op) { return op.label.ends_with(runtime::kOfWholeGraph); };
  const auto whole = std::count_if(replayed.times.begin(), replayed.times.end(), of_graph);
  const auto all = std::ssize(replayed.times);
  return whole == all / kAttentionRuns * (kAttentionRuns - 1)
             ? ""
             : str(whole, " of ", all, " times are of graphs");
}

TEST(NcclGraphs, AttentionIsWhatLaunchedRunsGiveWithTheirTraces) {
  CP_REQUIRE_GPU();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const char* strategy : {"ring", "ulysses_ring"}) {
      const std::vector<Rank> ranks{0, 1, 2, 3};
      const GpuJob launched(4), graphs(4);
      EXPECT_EQ(
          testing::run_gpu_ranks(
              4,
              [&](Rank rank) { return compare_attention(launched, graphs, rank, dtype, ranks, strategy); }),
          std::vector<std::string>(4))
          << strategy << " " << name(dtype);
    }
  }
}

// ---- bindings

// Two outputs by turns, then others than there is room for.
std::string changes_its_buffers(const GpuJob& job, Rank rank, bool traces) {
  NcclDevice device(with_graphs(job.options(rank), traces));
  const Plan plan = twice_the_sum(rank, "all");
  const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
  const GraphFloats x(static_cast<float>(rank + 1));
  const std::array<GraphFloats, 7> y;
  PreparedPlan prepared(device, plan, {{kGraphX, x.data(), kGraphBytes}});
  std::int64_t records = 0;
  const auto run_into = [&](std::size_t at) {
    prepared.run({{kGraphY, y[at].data(), kGraphBytes}}, stream.get());
    ++records;
  };
  for (int round = 0; round < 10; ++round) run_into(0), run_into(1);
  CP_CUDA(cudaStreamSynchronize(stream.get()));
  if (!y[0].has(6) || !y[1].has(6)) return "wrong sums of the first two";
  if (to_text(device.graph_use()) != "2 launched, 2 captured, 16 replayed; ")
    return to_text(device.graph_use());
  for (int round = 0; round < 2; ++round) {
    for (std::size_t at = 2; at < y.size(); ++at) run_into(at);  // five sets, of which four have a place
  }
  run_into(0);
  CP_CUDA(cudaStreamSynchronize(stream.get()));
  prepared.last_run().wait();
  for (const GraphFloats& each : y) {
    if (!each.has(6)) return "wrong sums of the others";
  }
  if (to_text(device.graph_use()) != "13 launched, 2 captured, 16 replayed; ")
    return to_text(device.graph_use());
  const auto observed = std::ssize(device.take_observed());
  return observed == (traces ? records : 0) ? "" : str(observed, " records of ", records);
}

TEST(NcclGraphs, EachSetOfBuffersHasAGraphOfItsOwn) {
  CP_REQUIRE_GPU();
  for (const bool traces : {true, false}) {
    const GpuJob job(2);
    EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return changes_its_buffers(job, rank, traces); }),
              kNothing2)
        << traces;
  }
}

// The program's own work before and behind each run is on its stream alone; nobody waits until the end.
void sleep_before_a_replay(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

std::string replays_in_the_callers_stream(const GpuJob& job, Rank rank) {
  constexpr int kRuns = 6;
  NcclDevice device(with_graphs(job.options(rank), false));
  const Plan plan = twice_the_sum(rank, "all");
  const runtime::CudaStream stream(runtime::CudaStream::Priority::normal);
  const GraphFloats x, y;
  PreparedPlan prepared(device, plan, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, y.data(), kGraphBytes}});
  std::vector<std::vector<float>> given, got(kRuns, std::vector<float>(kGraphNumel, -1));
  for (int run = 0; run < kRuns; ++run)
    given.emplace_back(kGraphNumel, static_cast<float>(10 * run + rank + 1));
  for (int run = 0; run < kRuns; ++run) {
    const auto at = static_cast<std::size_t>(run);
    CP_CUDA(cudaLaunchHostFunc(stream.get(), sleep_before_a_replay, nullptr));
    CP_CUDA(cudaMemcpyAsync(x.data(), given[at].data(), kGraphBytes, cudaMemcpyHostToDevice, stream.get()));
    prepared.run({}, stream.get());
    CP_CUDA(cudaMemcpyAsync(got[at].data(), y.data(), kGraphBytes, cudaMemcpyDeviceToHost, stream.get()));
  }
  CP_CUDA(cudaStreamSynchronize(stream.get()));
  for (int run = 0; run < kRuns; ++run) {
    for (const float value : got[static_cast<std::size_t>(run)]) {
      if (value != static_cast<float>(40 * run + 6)) return str("run ", run, " gave ", value);
    }
  }
  // A run inside of somebody else's capture is refused, and leaves the device as it was.
  CP_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const std::string refused = thrown_by([&] { prepared.run({}, stream.get()); });
  cudaGraph_t graph = nullptr;
  CP_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  CP_CUDA(cudaGraphDestroy(graph));
  if (std::string wrong = lacks(refused, {"is being captured into a CUDA graph"}); !wrong.empty())
    return wrong;
  prepared.run({}, stream.get()).wait();
  return y.has(40 * (kRuns - 1) + 6) ? "" : "the run behind the refused one is wrong";
}

TEST(NcclGraphs, ReplaysTakeTheirPlaceInTheCallersStream) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return replays_in_the_callers_stream(job, rank); }),
            kNothing2);
}

// ---- beside others

std::string runs_two_lanes(const GpuJob& job, Rank rank) {
  NcclDevice device(with_graphs(job.options(rank)));
  const Plan one = twice_the_sum(rank, "one", 3), other = twice_the_sum(rank, "other");
  const GraphFloats x(static_cast<float>(rank + 1)), first(-1), second(-1);
  PreparedPlan a(device, one, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, first.data(), kGraphBytes}}, 0);
  PreparedPlan b(device, other, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, second.data(), kGraphBytes}}, 1);
  for (int run = 0; run < 20; ++run) a.run(), b.run();
  device.synchronize();
  if (!first.has(6) || !second.has(6)) return "wrong sums";
  if (to_text(device.graph_use()) != "2 launched, 2 captured, 36 replayed; ")
    return to_text(device.graph_use());
  return device.take_observed().size() == 80 ? "" : "other records";
}

TEST(NcclGraphs, PlansOfTwoLanesAreGraphsBesideOneAnother) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return runs_two_lanes(job, rank); }), kNothing2);
}

// Steps of a plan that is not kept come before and behind replays on the same streams, without a wait of the
// host: they add up what a replay has written, and make zeros of it before the next one. Every step is late.
std::string mixes_with_loose_steps(const GpuJob& job, Rank rank) {
  NcclOptions options = with_graphs(job.options(rank));
  options.before_step = [](const Step&, CallerStream stream) {
    testing::delay(stream, std::chrono::milliseconds(2));
  };
  NcclDevice device(options);
  const Plan plan = twice_the_sum(rank, "all");
  const GraphFloats x(static_cast<float>(rank + 1)), y, total, unused;
  PlanBuilder b(rank, host_target());
  const View from = flat_view(b.inout("from", DType::f32, kGraphNumel), 0, kGraphNumel);
  const View to = flat_view(b.inout("to", DType::f32, kGraphNumel), 0, kGraphNumel);
  const View other = flat_view(b.inout("other", DType::f32, kGraphNumel), 0, kGraphNumel);
  b.add(b.stream("first"), Scale{other, 1});
  b.add(b.stream("second"), Accumulate{ReduceOp::sum, from, to});
  b.add(b.stream("second"), Scale{from, 0});
  const Plan loose = std::move(b).build({});
  PreparedPlan kept(device, plan, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, y.data(), kGraphBytes}});
  kept.run(), kept.run(), kept.run();
  device.prepare(
      loose, {{0, y.data(), kGraphBytes}, {1, total.data(), kGraphBytes}, {2, unused.data(), kGraphBytes}});
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    kept.run();
    device.use(0, {});
    enqueue_steps(loose, device);
  }
  device.synchronize();
  if (device.graph_use().replayed != 1 + kRounds) return to_text(device.graph_use());
  return total.has(6 * kRounds) ? "" : "a step and a replay were out of order";
}

TEST(NcclGraphs, StepsThatAreLaunchedOutsideOfRunsStayInOrderWithReplays) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return mixes_with_loose_steps(job, rank); }),
            kNothing2);
}

// ---- what cannot be captured

std::string has_too_many_collectives(const GpuJob& job, Rank rank) {
  NcclDevice device(with_graphs(job.options(rank)));
  const Plan plan = twice_the_sum(rank, "all", 65);
  const GraphFloats x(static_cast<float>(rank + 1)), y;
  PreparedPlan prepared(device, plan, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, y.data(), kGraphBytes}});
  for (int run = 0; run < 3; ++run) prepared.run();
  prepared.last_run().wait();
  if (!y.has(6)) return "wrong sums";
  return lacks(to_text(device.graph_use()), {"3 launched, 0 captured, 0 replayed",
                                             "is launched step by step, not as a graph: it has 65 "
                                             "collectives of group all[0,1]"});
}

TEST(NcclGraphs, APlanWithMoreCollectivesThanMayBeUnderWayIsLaunched) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return has_too_many_collectives(job, rank); }),
            kNothing2);
}

// In the midst of a capture something is called that no capture allows.
std::string cannot_be_captured(const GpuJob& job, Rank rank) {
  NcclOptions options = with_graphs(job.options(rank));
  int steps = 0;
  options.before_step = [&steps](const Step&, CallerStream) {
    if (++steps != 5) return;  // the second of the second run
    void* data = nullptr;
    CP_CUDA(cudaMalloc(&data, 8));
  };
  NcclDevice device(options);
  const Plan plan = twice_the_sum(rank, "all");
  const GraphFloats x(static_cast<float>(rank + 1)), y;
  PreparedPlan prepared(device, plan, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, y.data(), kGraphBytes}});
  for (int run = 0; run < 4; ++run) {
    prepared.run().wait();
    if (!y.has(6)) return str("run ", run, " gave wrong sums");
  }
  if (device.take_observed().size() != 4) return "other records";
  return lacks(to_text(device.graph_use()),
               {"4 launched, 0 captured, 0 replayed", "not as a graph: cudaMalloc"});
}

TEST(NcclGraphs, APlanThatCudaDoesNotCaptureIsLaunchedAndSaysWhy) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return cannot_be_captured(job, rank); }), kNothing2);
}

// ---- errors

#ifdef CP_GPU_EMULATED
constexpr std::chrono::milliseconds kReplayTimeout{1'000};
#else
constexpr std::chrono::milliseconds kReplayTimeout{5'000};  // the first collective connects, which counts
#endif

std::string misses_a_replay(const GpuJob& job, Rank rank) {
  const bool before = runtime::left_behind();
  {
    NcclOptions options = with_graphs(job.options(rank));
    options.timeout = kReplayTimeout;
    std::atomic<std::int64_t> begun{0};
    options.on_collective = [&](const runtime::CollectiveBegin& begin) { begun = begin.number; };
    NcclDevice device(options);
    const Plan plan = twice_the_sum(rank, "all", 2);
    const GraphFloats x(1), y;
    PreparedPlan prepared(device, plan, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, y.data(), kGraphBytes}});
    prepared.run(), prepared.run();
    prepared.run().wait();
    if (rank == 1) {
      std::this_thread::sleep_for(kReplayTimeout * 5 / 2);
      return "";
    }
    const PlanRun lonely = prepared.run();
    const std::string error = thrown_by([&] { lonely.wait(); });
    std::string wrong = lacks(error, {"rank 0: all_reduce #6 on all[0,1], or one behind it in a graph of 2 "
                                      "collectives: no progress for"});
    if (!wrong.empty()) return wrong;
    if (begun != 6) return str("told of collective ", begun.load());
    if (device.take_observed().size() != 6) return "observed what did not end";
  }
  return runtime::left_behind() && !before ? "the graphs kept the communicators" : "";
}

TEST(NcclGraphs, APeerThatDoesNotReplayIsATimeoutThatNamesTheFirstCollective) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return misses_a_replay(job, rank); }), kNothing2);
}

std::string aborts_in_a_replay(const GpuJob& job, Rank rank) {
  const bool before = runtime::left_behind();
  {
    NcclDevice device(with_graphs(job.options(rank)));
    const Plan plan = twice_the_sum(rank, "all");
    const GraphFloats x(1), y;
    PreparedPlan prepared(device, plan, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, y.data(), kGraphBytes}});
    prepared.run(), prepared.run();
    prepared.run().wait();
    if (rank == 1) {
      device.abort();
      const std::string error = thrown_by([&] { prepared.run().wait(); });
      return lacks(error, {"aborted on this side"});
    }
    const std::string error = thrown_by([&] { prepared.run().wait(); });
    std::string wrong = lacks(error, {"all_reduce #3 on all[0,1]"});
    if (!wrong.empty()) return wrong;
    if (thrown_by([&] { prepared.run().wait(); }) != error) return "the next run does not say the same";
  }
  return runtime::left_behind() && !before ? "the graphs kept the communicators" : "";
}

TEST(NcclGraphs, ALostPeerIsToldByTheNextWait) {
  CP_REQUIRE_GPU();
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return aborts_in_a_replay(job, rank); }), kNothing2);
}

#ifdef CP_GPU_EMULATED

// In the midst of a replay the GPU of rank 0 breaks.
std::string breaks_in_a_replay(const GpuJob& job, Rank rank) {
  std::atomic<bool> breaks{false};
  {
    NcclOptions options = with_graphs(job.options(rank));
    options.before_step = [&](const Step& step, CallerStream stream) {
      if (is_collective(step)) return;
      emulated::enqueue(static_cast<cudaStream_t>(stream), [&] {
        if (breaks) throw std::runtime_error("a kernel that fails");
      });
    };
    NcclDevice device(options);
    const Plan plan = twice_the_sum(rank, "all");
    const GraphFloats x(1), y;
    PreparedPlan prepared(device, plan, {{kGraphX, x.data(), kGraphBytes}, {kGraphY, y.data(), kGraphBytes}});
    prepared.run(), prepared.run();
    prepared.run().wait();
    if (rank == 1) {
      prepared.run().wait();  // as many as rank 0
      return "";
    }
    breaks = true;
    const std::string error = thrown_by([&] { prepared.run().wait(); });
    std::string wrong = lacks(error, {"this process can no longer use the GPU"});
    if (!wrong.empty()) return wrong;
    if (device.graph_use().replayed != 2) return to_text(device.graph_use());
  }
  static_cast<void>(cudaDeviceReset());  // what a program does that goes on
  return "";
}

TEST(NcclGraphs, AnErrorOfAReplayIsToldByTheNextWait) {
  const GpuJob job(2);
  EXPECT_EQ(testing::run_gpu_ranks(2, [&](Rank rank) { return breaks_in_a_replay(job, rank); }), kNothing2);
}

#endif

}  // namespace
}  // namespace cp
