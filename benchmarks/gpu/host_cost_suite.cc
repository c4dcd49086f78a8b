// HostCost: what the host spends on a step of a kept plan, the executor and the device together; at most 4 us
// are wanted, and 5 where the device keeps traces (traced/).
//
//   idle   kernels of one element end before the host comes back to their stream: with traces a step finds it
//          idle, and records one event more
//   busy   each stream has long work in front, as in a run: the GPU is behind the host all the time
//
// The steps are Scale: what its launch costs is CUDA's launch of one kernel, and the rest is the executor's,
// which is the question here. bare_us is what the calls of CUDA cost without it: on a slow processor they
// alone may take longer than the limit. A step of cuDNN's costs what its execute() needs beside that. The
// calls that it makes are counted exactly where no GPU is needed (tests/gpu/nccl_host_cost_test.cc).
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/cuda/packed_lse.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/forwarding_device.h"
#include "shared/plan/prepared_plan.h"

namespace cp::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kSteps = 128;

// The device, and when the host came to the step after so many, and had launched the last one.
class Watched final : public ForwardingDevice {
 public:
  Watched(Device& device, int steps_before) : ForwardingDevice(device), steps_before_(steps_before) {}
  void begin() { launched_ = 0; }
  double seconds() const { return Seconds(left_ - came_).count(); }

  void launch(const StepRef& step, std::int64_t iteration) override {
    if (launched_++ == steps_before_) came_ = Clock::now();
    ForwardingDevice::launch(step, iteration);
    if (launched_ == steps_before_ + kSteps) left_ = Clock::now();
  }

 private:
  int steps_before_, launched_ = 0;
  Clock::time_point came_, left_;
};

// After so many steps the next one goes to the other stream, and waits.
struct HostCost {
  int steps_to_a_stream = 1;
  bool busy = false, traced = false;
};

Plan plan_of(const HostCost& cost, int long_steps) {
  constexpr std::int64_t kLongNumel = std::int64_t{64} << 20;
  const std::vector<const char*> names = {"first", "second"};
  PlanBuilder b(0, runtime::gpu_target_of(0));
  for (int i = 0; i < long_steps; ++i) {
    const auto stream = static_cast<std::size_t>(i) % (cost.steps_to_a_stream < kSteps ? 2 : 1);
    const View filler = flat_view(b.inout(str("long ", stream), DType::f32, kLongNumel), 0, kLongNumel);
    b.add(b.stream(names[stream]), Scale{filler, 1}, "long");
  }
  const View x = flat_view(b.inout("x", DType::f32, 1), 0, 1);
  for (int i = 0; i < kSteps; ++i)
    b.add(b.stream(names[static_cast<std::size_t>(i / cost.steps_to_a_stream % 2)]), Scale{x, 1});
  return std::move(b).build({});
}

// The same calls of CUDA without an executor: a launch for each step and, where the next step is on the other
// stream, an event that this one waits for. Microseconds of the host for each step.
double bare_us(const HostCost& cost, int long_steps) {
  const runtime::CudaStream streams[] = {runtime::CudaStream(runtime::CudaStream::Priority::normal),
                                         runtime::CudaStream(runtime::CudaStream::Priority::normal)};
  const runtime::CudaEvent event(runtime::CudaEvent::Timing::off);
  constexpr std::int64_t kLongBytes = std::int64_t{256} << 20;
  const DeviceBytes from(cost.busy ? kLongBytes : 1), to(cost.busy ? kLongBytes : 1), x(4);
  auto* const one = static_cast<float*>(x.data());
  std::vector<double> seconds;
  for (int run = 0; run < 50; ++run) {
    for (int i = 0; i < long_steps; ++i)
      CP_CUDA(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(kLongBytes),
                              cudaMemcpyDeviceToDevice, streams[i % 2].get()));
    const auto begin = Clock::now();
    const runtime::CudaStream* last = nullptr;
    for (int i = 0; i < kSteps; ++i) {
      const runtime::CudaStream& stream = streams[i / cost.steps_to_a_stream % 2];
      if (last != nullptr && last != &stream) {
        CP_CUDA(cudaEventRecord(event.get(), last->get()));
        CP_CUDA(cudaStreamWaitEvent(stream.get(), event.get(), 0));
      }
      runtime::transpose_f32(stream.get(), one, one, 1, 1);  // the least that the project launches
      last = &stream;
    }
    seconds.push_back(Seconds(Clock::now() - begin).count());
    for (const runtime::CudaStream& stream : streams) CP_CUDA(cudaStreamSynchronize(stream.get()));
  }
  return median(seconds) * 1e6 / kSteps;
}

// Microseconds of the host for each step.
void host_cost(benchmark::State& state, const HostCost& cost) {
  // Of each stream 24: together 1.5 ms where memory has 8 TB/s.
  const int long_steps = !cost.busy ? 0 : cost.steps_to_a_stream < kSteps ? 48 : 24;
  const Plan plan = plan_of(cost, long_steps);
  const auto device = make_device(0, {.traces = cost.traced});
  Watched watched(*device, long_steps);
  PreparedPlan prepared(watched, plan);
  std::vector<double> seconds;
  std::size_t runs = 0;
  for (auto _ : state) {
    watched.begin();
    const PlanRun run = prepared.run();
    // All short steps are behind the long ones: as long as the run has not ended, none of them had begun
    // before the host was through, or few.
    const bool held = !cost.busy || !run.has_ended();
    state.SetIterationTime(watched.seconds());
    run.wait();
    device->synchronize();
    if (cost.traced) static_cast<void>(device->take_times()), static_cast<void>(device->take_observed());
    if (++runs, held) seconds.push_back(watched.seconds());
  }
  if (seconds.size() < (runs + 1) / 2)
    throw CheckFailure(str("the streams had run dry before the host was through in ", runs - seconds.size(),
                           " of ", runs, " runs, so that busy streams were not measured; it takes more than ",
                           long_steps, " long steps here"));
  state.counters["us/step"] = median(seconds) * 1e6 / kSteps;
  state.counters["bare_us"] = bare_us(cost, long_steps);
  state.counters["limit_us"] = cost.traced ? 5 : 4;
}

}  // namespace

void register_host_cost() {
  for (const bool traced : {false, true}) {
    for (const bool busy : {true, false}) {
      for (const int steps_to_a_stream : {kSteps, 1}) {
        add_benchmark(str("HostCost/", traced ? "traced/" : "", busy ? "busy" : "idle",
                          "/steps_to_a_stream:", steps_to_a_stream),
                      200, [=](benchmark::State& state) {
                        host_cost(state, {steps_to_a_stream, busy, traced});
                      });
      }
    }
  }
}

}  // namespace cp::benchmarks
