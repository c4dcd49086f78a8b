#include "benchmarks/gpu/measure.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "sim/cost/timeline/kernel_cost.h"

namespace cp::benchmarks {

using runtime::CudaEvent;
using runtime::CudaStream;
using runtime::NcclDevice;

namespace {
bool failed = false;
std::vector<Measured> all_measured;
}  // namespace

benchmark::internal::Benchmark* add_benchmark(const std::string& name, int iterations,
                                              std::function<void(benchmark::State&)> body) {
  const auto guarded = [name, body = std::move(body)](benchmark::State& state) {
    try {
      body(state);
      Measured& made = all_measured.emplace_back(Measured{name, {}});
      for (const auto& [counter, value] : state.counters) made.counters[counter] = value.value;
    } catch (const std::exception& error) {
      failed = true;
      state.SkipWithError(error.what());
    }
  };
  return benchmark::RegisterBenchmark(name.c_str(), guarded)->UseManualTime()->Iterations(iterations);
}

bool any_failed() { return failed; }
const std::vector<Measured>& measured() { return all_measured; }

std::unique_ptr<NcclDevice> make_device(Rank rank, DeviceChoices choices) {
  runtime::NcclOptions options;
  options.rank = rank;
  options.traces = choices.traces, options.graphs = choices.graphs;
  options.share = [](const std::string&, const std::optional<std::string>& id) { return *id; };
  return std::make_unique<NcclDevice>(std::move(options));
}

double seconds_of_plan(NcclDevice& device, PlanSession& session, int runs) {
  static_cast<void>(device.take_times());
  session.run({.iterations = runs});
  static_cast<void>(device.take_observed());
  std::int64_t begin = INT64_MAX, end = 0;
  for (const TimedOp& op : device.take_times().steps) {
    begin = std::min(begin, op.begin_ns);
    end = std::max(end, op.end_ns);
  }
  return static_cast<double>(end - begin) * 1e-9 / runs;
}

double seconds_on_stream(int runs, const std::function<void(cudaStream_t)>& enqueue) {
  static const CudaStream stream(CudaStream::Priority::normal);
  static const CudaEvent begin(CudaEvent::Timing::on), end(CudaEvent::Timing::on);
  CP_CUDA(cudaEventRecord(begin.get(), stream.get()));
  for (int i = 0; i < runs; ++i) enqueue(stream.get());
  CP_CUDA(cudaEventRecord(end.get(), stream.get()));
  CP_CUDA(cudaEventSynchronize(end.get()));
  float milliseconds = 0;
  CP_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e-3 / runs;
}

void compare(benchmark::State& state, const std::function<double()>& ours,
             const std::function<double()>& library) {
  for (int i = 0; i < 3; ++i) static_cast<void>(ours()), static_cast<void>(library());
  std::vector<double> our_seconds, library_seconds;
  for (auto _ : state) {
    library_seconds.push_back(library());
    our_seconds.push_back(ours());
    state.SetIterationTime(our_seconds.back());
  }
  state.counters["ours_us"] = median(our_seconds) * 1e6;
  state.counters["library_us"] = median(library_seconds) * 1e6;
  state.counters["share"] = median(library_seconds) / median(our_seconds);
}

namespace {

// Random ones below the limit, in all inputs of integers.
void upload_integers(PreparedPlan& prepared, std::int32_t limit) {
  const Plan& plan = prepared.plan();
  for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& buffer = plan.buffers[id];
    if (buffer.dtype != DType::i32 || buffer.kind != BufferKind::input) continue;
    std::vector<std::int32_t> integers(static_cast<std::size_t>(buffer.numel));
    std::uint32_t state = 1;
    for (std::int32_t& integer : integers) {
      state = state * 1664525 + 1013904223;
      integer = static_cast<std::int32_t>((std::uint64_t{state} * static_cast<std::uint32_t>(limit)) >> 32);
    }
    prepared.upload(static_cast<BufferId>(id), std::as_bytes(std::span(integers)));
  }
}

}  // namespace

void compare_with_copy(benchmark::State& state, const std::function<void(PlanBuilder&)>& add,
                       std::int32_t integers) {
  constexpr int kRuns = 20;
  PlanBuilder b(0, runtime::gpu_target_of(0));
  b.begin_repeat(kRuns);
  add(b);
  b.end_repeat();
  const Plan plan = std::move(b).build({});
  std::int64_t bytes = 0;  // read and written
  for (const StepRef& ref : steps_of(plan))
    bytes += static_cast<std::int64_t>(sim::work_of(std::get<Kernel>(ref.step->work), plan).bytes);
  const auto device = make_device(0, {.traces = false});
  PreparedPlan prepared(*device, plan);
  upload_values(prepared), upload_integers(prepared, integers);
  const std::int64_t copied = bytes / 2;
  const DeviceBytes from(copied), to(copied);
  compare(
      state,
      [&] { return seconds_on_stream(1, [&](cudaStream_t stream) { prepared.run({}, stream); }) / kRuns; },
      [&] {
        return seconds_on_stream(kRuns, [&](cudaStream_t stream) {
          CP_CUDA(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(copied),
                                  cudaMemcpyDeviceToDevice, stream));
        });
      });
  state.counters["GB/s"] = static_cast<double>(bytes) / state.counters["ours_us"].value * 1e-3;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

namespace {

void upload_values(const Plan& plan,
                   const std::function<void(BufferId, std::span<const std::byte>)>& upload) {
  for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& buffer = plan.buffers[id];
    if (buffer.kind != BufferKind::input && buffer.kind != BufferKind::inout) continue;
    std::vector<std::uint16_t> halves(static_cast<std::size_t>(buffer.bytes()) / 2);
    std::uint32_t state = 1;
    for (std::uint16_t& half : halves) {
      state = state * 1664525 + 1013904223;
      // A bf16 of exponent 2^-2 and any sign and fraction; two of them are an f32 of that size.
      half = static_cast<std::uint16_t>((state >> 16 & 0x807F) | 0x3E80);
    }
    upload(static_cast<BufferId>(id), std::as_bytes(std::span(halves)));
  }
}

}  // namespace

void upload_values(PlanSession& session) {
  upload_values(session.plan(), [&](BufferId id, auto bytes) { session.upload(id, bytes); });
}
void upload_values(PreparedPlan& prepared) {
  upload_values(prepared.plan(), [&](BufferId id, auto bytes) { prepared.upload(id, bytes); });
}

DeviceBytes::DeviceBytes(std::int64_t bytes) {
  CP_CUDA(cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))));
  CP_CUDA(cudaMemset(data_, 0, static_cast<std::size_t>(bytes)));
}

DeviceBytes::~DeviceBytes() { static_cast<void>(cudaFree(data_)); }

}  // namespace cp::benchmarks
