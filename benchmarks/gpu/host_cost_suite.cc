// HostCost: what the host spends on a step, the executor and the device together, with kernels of one element.
#include <chrono>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"

namespace cp::benchmarks {
namespace {

// Microseconds of the host for each step; after so many steps the next one goes to the other stream, and waits.
void host_cost(benchmark::State& state) {
  constexpr int kSteps = 128;
  const auto steps_to_a_stream = static_cast<int>(state.range(0));
  PlanBuilder b(0, runtime::gpu_target_of(0));
  const View x = flat_view(b.inout("x", DType::f32, 1), 0, 1);
  for (int i = 0; i < kSteps; ++i)
    b.add(b.stream(i / steps_to_a_stream % 2 == 0 ? "first" : "second"), Scale{x, 1});
  const Plan plan = std::move(b).build({});
  const auto device = make_device();
  device->prepare(plan, {});
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    enqueue_steps(plan, *device);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    state.SetIterationTime(seconds.back());
    device->synchronize();
  }
  state.counters["us/step"] = median(seconds) * 1e6 / kSteps;
}

}  // namespace

void register_host_cost() {
  benchmark::RegisterBenchmark("HostCost", host_cost)
      ->UseManualTime()
      ->Iterations(200)
      ->Arg(128)
      ->Arg(1)
      ->ArgName("steps_to_a_stream");
}

}  // namespace cp::benchmarks
