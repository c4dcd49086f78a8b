// How the GPU's benchmarks measure: plans on a device of one rank and work on a stream, both by CUDA's
// events, taking turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include "benchmarks/gpu/targets.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/plan/builder.h"
#include "shared/plan/prepared_plan.h"
#include "shared/plan/session.h"

namespace cp::benchmarks {

// What of NcclOptions benchmarks choose.
struct DeviceChoices {
  bool traces = true, graphs = false;
};
// A device of one rank without peers, on GPU 0.
std::unique_ptr<runtime::NcclDevice> make_device(Rank rank = 0, DeviceChoices choices = {});

// Registers a benchmark that tells its own time, of so many iterations. An exception of the body is the
// benchmark's result: the others run on.
benchmark::internal::Benchmark* add_benchmark(const std::string& name, int iterations,
                                              std::function<void(benchmark::State&)> body);
// Of those that have run.
bool any_failed();
const std::vector<Measured>& measured();  // those that have not failed

// Seconds of one run of the device's session, from the begin of its first step to the end of its last; of
// `runs` in a row.
double seconds_of_plan(runtime::NcclDevice& device, PlanSession& session, int runs);

// The same of anything that `enqueue` puts on a stream of its own.
double seconds_on_stream(int runs, const std::function<void(cudaStream_t)>& enqueue);

// One after the other, so that both see the same clocks. Counters: the medians "ours_us" and "library_us",
// and "share", how much of the library's rate ours has.
void compare(benchmark::State& state, const std::function<double()>& ours,
             const std::function<double()>& library);

// The kernel that add() writes into a plan beside cudaMemcpyAsync from the GPU to itself, of as many bytes as
// the kernel reads and writes (kernel_cost.h). `share`: of the rate of the copy; a further counter is "GB/s".
// Inputs have values as below; integers are those below `integers`. Without traces: the event behind each
// step takes the GPU 1.2 us (measured on an H200), while the copies follow one another at once.
void compare_with_copy(benchmark::State& state, const std::function<void(PlanBuilder&)>& add,
                       std::int32_t integers = 1);

double median(std::vector<double> values);

// Values of size 1/4 to 1/2 and any sign in all inputs, of 16 bits or 32: products of small numbers and of
// huge ones cost different power, and so different clocks.
void upload_values(PlanSession& session);
void upload_values(PreparedPlan& prepared);

// Zeroed memory of the GPU.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::int64_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace cp::benchmarks
