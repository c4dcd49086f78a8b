// Moves: merges, pack, unpack, transpose, cast and accumulate beside cudaMemcpyAsync from the GPU to itself.
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"

namespace cp::benchmarks {
namespace {

struct Move {
  const char* name = "";
  DType dtype = DType::f32;  // of the larger tensor
  // A step over tensors of `numel` elements.
  std::function<void(PlanBuilder&, std::int64_t numel)> add;
};

constexpr std::int64_t kMovedHeads = 16, kMovedHeadDim = 128;

// Of `parts` results into another one: as a ring merges, of 16 bits each, or of f32.
std::function<void(PlanBuilder&, std::int64_t)> merge(DType in, DType out, int parts) {
  return [=](PlanBuilder& b, std::int64_t numel) {
    const std::int64_t rows = numel / kMovedHeads / kMovedHeadDim;
    const auto result = [&](BufferId id) { return dense_view(id, 0, {1, rows, kMovedHeads, kMovedHeadDim}); };
    const auto statistic = [&](BufferId id) { return dense_view(id, 0, {1, kMovedHeads, rows}); };
    std::vector<View> results, statistics;
    for (int i = 0; i < parts; ++i) {
      results.push_back(result(b.input(str("in ", i), in, numel)));
      statistics.push_back(statistic(b.input(str("in_lse ", i), DType::f32, kMovedHeads * rows)));
    }
    b.add(b.stream("s"), AttentionMerge{results.front(),
                                        statistics.front(),
                                        result(b.inout("out", out, numel)),
                                        statistic(b.inout("lse", DType::f32, kMovedHeads * rows)),
                                        {results.begin() + 1, results.end()},
                                        {statistics.begin() + 1, statistics.end()}});
  };
}

// The innermost dimensions swapped.
std::function<void(PlanBuilder&, std::int64_t)> transpose(DType dtype) {
  return [=](PlanBuilder& b, std::int64_t numel) {
    const std::int64_t rows = numel / kMovedHeads / kMovedHeadDim;
    b.add(b.stream("s"),
          Copy{{b.input("x", dtype, numel),
                0,
                {kMovedHeads, rows, kMovedHeadDim},
                {rows * kMovedHeadDim, 1, rows},
                {}},
               dense_view(b.output("y", dtype, numel), 0, {kMovedHeads, rows, kMovedHeadDim})});
  };
}

std::vector<Move> moves() {
  constexpr int kMost = static_cast<int>(kMostMerged);
  static_assert(kMost == 3, "in names below");
  const auto strided = [](BufferId buffer,
                          std::int64_t numel) {  // [heads, rows, dim] of memory [rows, heads, dim]
    return View{buffer,
                0,
                {kMovedHeads, numel / kMovedHeads / kMovedHeadDim, kMovedHeadDim},
                {kMovedHeadDim, kMovedHeads * kMovedHeadDim, 1},
                {}};
  };
  const auto dense = [](BufferId buffer, std::int64_t numel) {
    return dense_view(buffer, 0, {kMovedHeads, numel / kMovedHeads / kMovedHeadDim, kMovedHeadDim});
  };
  return {{"pack", DType::bf16,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Copy{strided(b.input("x", DType::bf16, numel), numel),
                                       dense(b.output("y", DType::bf16, numel), numel)});
           }},
          {"unpack", DType::bf16,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Copy{dense(b.input("x", DType::bf16, numel), numel),
                                       strided(b.output("y", DType::bf16, numel), numel)});
           }},
          {"cast", DType::f32,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Cast{dense(b.input("x", DType::f32, numel), numel),
                                       dense(b.output("y", DType::bf16, numel), numel)});
           }},
          {"accumulate", DType::f32,
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Accumulate{ReduceOp::sum, dense(b.input("x", DType::f32, numel), numel),
                                             dense(b.inout("y", DType::f32, numel), numel)});
           }},
          {"transpose_f32", DType::f32, transpose(DType::f32)},
          {"transpose_bf16", DType::bf16, transpose(DType::bf16)},
          {"merge_f32_into_f32", DType::f32, merge(DType::f32, DType::f32, 1)},
          {"merge_bf16_into_bf16", DType::bf16, merge(DType::bf16, DType::bf16, 1)},
          {"merge_3_bf16_into_bf16", DType::bf16, merge(DType::bf16, DType::bf16, kMost)},
          {"merge_bf16_into_f32", DType::f32, merge(DType::bf16, DType::f32, 1)},
          {"merge_3_bf16_into_f32", DType::f32, merge(DType::bf16, DType::f32, kMost)}};
}

// Tensors of that size, larger than a cache.
void move(benchmark::State& state, const Move& made, std::int64_t mebibytes) {
  compare_with_copy(state, [&](PlanBuilder& b) { made.add(b, (mebibytes << 20) / size_bytes(made.dtype)); });
}

}  // namespace

void register_moves() {
  for (const Move& made : moves()) {
    for (const std::int64_t mebibytes : {64, 256}) {
      add_benchmark(str("Moves/", made.name, "/", mebibytes, "MiB"), 21,
                    [=](benchmark::State& state) { move(state, made, mebibytes); });
    }
  }
}

}  // namespace cp::benchmarks
