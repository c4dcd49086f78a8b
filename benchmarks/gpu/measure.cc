#include "benchmarks/gpu/measure.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"

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
