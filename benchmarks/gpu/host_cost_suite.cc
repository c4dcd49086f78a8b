// HostCost: what the host spends on a step, the executor and the device together; at most 5 us are wanted.
//
//   idle   kernels of one element end before the host comes back to their stream: a step finds it idle, and
//          records one event more
//   busy   each stream has long work in front, as in a run: the GPU is behind the host all the time
//
// The steps are Scale: what its launch costs is CUDA's launch of one kernel, and the rest is the executor's,
// which is the question here. A step of cuDNN's costs what its execute() needs beside that.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "shared/plan/forwarding_device.h"

namespace cp::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kSteps = 128;
constexpr const char* kLong = "long";

// The device, and when the host came to the step after so many.
class Watched final : public ForwardingDevice {
 public:
  Watched(Device& device, int steps_before) : ForwardingDevice(device), steps_before_(steps_before) {}
  Clock::time_point came() const { return came_; }

  void launch(const StepRef& step, std::int64_t iteration) override {
    if (launched_++ == steps_before_) came_ = Clock::now();
    ForwardingDevice::launch(step, iteration);
  }

 private:
  int steps_before_, launched_ = 0;
  Clock::time_point came_;
};

// Of each stream the seconds from the begin of its long steps to their end; the least.
double seconds_of_long_steps(const std::vector<TimedOp>& steps) {
  std::map<StreamId, std::pair<std::int64_t, std::int64_t>> spans;
  for (const TimedOp& op : steps) {
    if (op.label != kLong) continue;
    auto& [begin, end] = spans.try_emplace(op.stream, op.begin_ns, op.end_ns).first->second;
    begin = std::min(begin, op.begin_ns), end = std::max(end, op.end_ns);
  }
  std::int64_t least = INT64_MAX;
  for (const auto& [stream, span] : spans) least = std::min(least, span.second - span.first);
  return static_cast<double>(least) * 1e-9;
}

// Microseconds of the host for each step; after so many steps the next one goes to the other stream, and
// waits.
void host_cost(benchmark::State& state, int steps_to_a_stream, bool busy) {
  constexpr int kLongSteps = 24;  // of a stream: together 1.5 ms where memory has 8 TB/s
  constexpr std::int64_t kLongNumel = std::int64_t{64} << 20;
  const std::vector<const char*> names = {"first", "second"};
  const int streams = steps_to_a_stream < kSteps ? 2 : 1;
  PlanBuilder b(0, runtime::gpu_target_of(0));
  for (int stream = 0; busy && stream < streams; ++stream) {
    const View filler = flat_view(b.inout(str(kLong, " ", stream), DType::f32, kLongNumel), 0, kLongNumel);
    for (int i = 0; i < kLongSteps; ++i)
      b.add(b.stream(names[static_cast<std::size_t>(stream)]), Scale{filler, 1}, kLong);
  }
  const View x = flat_view(b.inout("x", DType::f32, 1), 0, 1);
  for (int i = 0; i < kSteps; ++i)
    b.add(b.stream(names[static_cast<std::size_t>(i / steps_to_a_stream % 2)]), Scale{x, 1});
  const Plan plan = std::move(b).build({});
  const auto device = make_device();
  device->prepare(plan, {});
  std::vector<double> seconds;
  std::size_t runs = 0;
  for (auto _ : state) {
    Watched watched(*device, busy ? kLongSteps * streams : 0);
    const auto begin = Clock::now();
    enqueue_steps(plan, watched);
    const auto end = Clock::now();
    state.SetIterationTime(Seconds(end - watched.came()).count());
    device->synchronize();
    // The long steps began after `begin`, so that they had not ended at `end`.
    const double long_seconds = seconds_of_long_steps(device->take_times().steps);
    const bool held = !busy || long_seconds > Seconds(end - begin).count();
    static_cast<void>(device->take_observed());
    if (++runs, held) seconds.push_back(Seconds(end - watched.came()).count());
  }
  if (seconds.size() < (runs + 1) / 2)
    throw CheckFailure(str("the streams had run dry before the host was through in ", runs - seconds.size(),
                           " of ", runs, " runs, so that busy streams were not measured; it takes more than ",
                           kLongSteps, " long steps here"));
  state.counters["us/step"] = median(seconds) * 1e6 / kSteps;
  state.counters["limit_us"] = 5;
}

}  // namespace

void register_host_cost() {
  for (const bool busy : {true, false}) {
    for (const int steps_to_a_stream : {kSteps, 1}) {
      add_benchmark(str("HostCost/", busy ? "busy" : "idle", "/steps_to_a_stream:", steps_to_a_stream), 200,
                    [=](benchmark::State& state) { host_cost(state, steps_to_a_stream, busy); });
    }
  }
}

}  // namespace cp::benchmarks
