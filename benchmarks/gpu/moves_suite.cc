// Moves: merge, pack, unpack, cast and accumulate beside cudaMemcpyAsync from the GPU to itself.
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "runtime/cuda/cuda_error.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"

namespace cp::benchmarks {
namespace {

struct Move {
  const char* name = "";
  DType dtype = DType::f32;  // of the larger tensor
  // Adds a step over tensors of `numel` elements; returns the bytes that it reads and writes.
  std::function<std::int64_t(PlanBuilder&, std::int64_t numel)> add;
};

std::vector<Move> moves() {
  constexpr std::int64_t kHeads = 16, kHeadDim = 128;
  const auto strided = [](BufferId buffer,
                          std::int64_t numel) {  // [heads, rows, dim] of memory [rows, heads, dim]
    return View{
        buffer, 0, {kHeads, numel / kHeads / kHeadDim, kHeadDim}, {kHeadDim, kHeads * kHeadDim, 1}, {}};
  };
  const auto dense = [](BufferId buffer, std::int64_t numel) {
    return dense_view(buffer, 0, {kHeads, numel / kHeads / kHeadDim, kHeadDim});
  };
  return {{"pack", DType::bf16,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Copy{strided(b.input("x", DType::bf16, numel), numel),
                                       dense(b.output("y", DType::bf16, numel), numel)});
             return 4 * numel;
           }},
          {"unpack", DType::bf16,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Copy{dense(b.input("x", DType::bf16, numel), numel),
                                       strided(b.output("y", DType::bf16, numel), numel)});
             return 4 * numel;
           }},
          {"cast", DType::f32,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Cast{dense(b.input("x", DType::f32, numel), numel),
                                       dense(b.output("y", DType::bf16, numel), numel)});
             return 6 * numel;
           }},
          {"accumulate", DType::f32,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Accumulate{ReduceOp::sum, dense(b.input("x", DType::f32, numel), numel),
                                             dense(b.inout("y", DType::f32, numel), numel)});
             return 12 * numel;
           }},
          {"merge", DType::f32, [=](PlanBuilder& b, std::int64_t numel) {
             const std::int64_t rows = numel / kHeads / kHeadDim;
             const auto out = [&](BufferId id) { return dense_view(id, 0, {1, rows, kHeads, kHeadDim}); };
             const auto lse = [&](BufferId id) { return dense_view(id, 0, {1, kHeads, rows}); };
             b.add(b.stream("s"), AttentionMerge{out(b.input("in", DType::f32, numel)),
                                                 lse(b.input("in_lse", DType::f32, kHeads * rows)),
                                                 out(b.inout("out", DType::f32, numel)),
                                                 lse(b.inout("lse", DType::f32, kHeads * rows))});
             return 12 * numel + 12 * kHeads * rows;
           }}};
}

// Tensors of that size, larger than a cache. `share`: of the rate at which cudaMemcpyAsync reads and writes.
void move(benchmark::State& state, const Move& made, std::int64_t mebibytes) {
  PlanBuilder b(0, runtime::gpu_target_of(0));
  const std::int64_t bytes = made.add(b, (mebibytes << 20) / size_bytes(made.dtype));
  const Plan plan = std::move(b).build({});
  const auto device = make_device();
  device->prepare(plan, {});
  upload_values(*device, plan);
  const std::int64_t copied = bytes / 2;
  const DeviceBytes from(copied), to(copied);
  constexpr int kRuns = 20;
  compare(
      state, [&] { return seconds_of_plan(*device, plan, kRuns); },
      [&] {
        return seconds_on_stream(kRuns, [&](cudaStream_t stream) {
          CP_CUDA(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(copied),
                                  cudaMemcpyDeviceToDevice, stream));
        });
      });
  state.counters["GB/s"] = static_cast<double>(bytes) / state.counters["ours_us"].value * 1e-3;
}

}  // namespace

void register_moves() {
  for (const Move& made : moves()) {
    for (const std::int64_t mebibytes : {64, 256}) {
      benchmark::RegisterBenchmark(str("Moves/", made.name, "/", mebibytes, "MiB").c_str(),
                                   [=](benchmark::State& state) { move(state, made, mebibytes); })
          ->UseManualTime()
          ->Iterations(21);
    }
  }
}

}  // namespace cp::benchmarks
