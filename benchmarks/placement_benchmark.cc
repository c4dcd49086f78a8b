// The functions of index sets and layouts that the planner calls most.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "shared/base/text.h"
#include "shared/placement/layout.h"

namespace cp {
namespace {

Layout layout_of(const char* mesh, const std::string& placements, Shape shape) {
  return parse_layout(placements, Mesh::parse(mesh), std::move(shape), DType::f32);
}

// Documents of changing length, 1024 on average.
std::string documents_shard(int documents, const char* inner) {
  std::vector<std::int64_t> cu_seqlens = {0};
  for (int i = 0; i < documents; ++i) cu_seqlens.push_back(cu_seqlens.back() + (i % 2 == 0 ? 1000 : 1048));
  return str("S(0,per_sequence:", join(cu_seqlens, "/"), ":", inner, ")");
}

void intersection_of(benchmark::State& state, const IndexSet& a, const IndexSet& b) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(&a);
    benchmark::DoNotOptimize(intersection_size(a, b));
  }
}

void BM_IntersectionSizeContiguous(benchmark::State& state) {
  intersection_of(state, index_range(100, 900), index_range(512, 2048));
}
BENCHMARK(BM_IntersectionSizeContiguous);

void BM_IntersectionSizeHeadTail(benchmark::State& state) {
  const IndexSet head_tail = split_part(HeadTail{}, index_range(0, 1 << 20), 8, 3);
  intersection_of(state, head_tail, split_part(HeadTail{}, index_range(0, 1 << 20), 4, 1));
}
BENCHMARK(BM_IntersectionSizeHeadTail);

void BM_IntersectionSizeStripedWithContiguous(benchmark::State& state) {
  intersection_of(state, split_part(Striped{512}, index_range(0, 1 << 20), 8, 3), index_range(1000, 1 << 19));
}
BENCHMARK(BM_IntersectionSizeStripedWithContiguous);

void BM_IntersectionSizeStriped(benchmark::State& state) {
  const IndexSet all = index_range(0, std::int64_t{1} << 40);
  intersection_of(state, split_part(Striped{512}, all, 8, 3), split_part(Striped{512}, all, 6, 1));
}
BENCHMARK(BM_IntersectionSizeStriped);

void BM_IntersectionSizeDocuments(benchmark::State& state) {
  const Layout layout = layout_of("cp=8", documents_shard(1000, "head_tail"), {1024 * 1000});
  const Layout other = layout_of("cp=8", documents_shard(1000, "chunked"), {1024 * 1000});
  intersection_of(state, indices(layout, 0, 3), indices(other, 0, 5));
}
BENCHMARK(BM_IntersectionSizeDocuments);

void BM_IntersectContiguous(benchmark::State& state) {
  const IndexSet a = index_range(100, 900), b = index_range(512, 2048);
  for (auto _ : state) benchmark::DoNotOptimize(intersect(a, b));
}
BENCHMARK(BM_IntersectContiguous);

void indices_of(benchmark::State& state, const Layout& layout) {
  const Rank rank = layout.mesh.size() - 1;
  for (auto _ : state) benchmark::DoNotOptimize(indices(layout, 0, rank));
}

void BM_IndicesChunked(benchmark::State& state) {
  indices_of(state, layout_of("a=4,b=8", "S(0),S(1)", {1000, 1000}));
}
BENCHMARK(BM_IndicesChunked);

void BM_IndicesChunkedNested(benchmark::State& state) {
  indices_of(state, layout_of("a=4,b=8", "S(0),S(0)", {1000, 1000}));
}
BENCHMARK(BM_IndicesChunkedNested);

void BM_IndicesHeadTail(benchmark::State& state) {
  indices_of(state, layout_of("cp=8", "S(0,head_tail)", {1 << 20}));
}
BENCHMARK(BM_IndicesHeadTail);

void BM_IndicesStripedNested(benchmark::State& state) {
  indices_of(state, layout_of("a=4,b=8", "S(0,striped:512),S(0,striped:64)", {std::int64_t{1} << 40}));
}
BENCHMARK(BM_IndicesStripedNested);

void BM_IndicesThousandDocuments(benchmark::State& state) {
  indices_of(state, layout_of("cp=8", documents_shard(1000, "head_tail"), {1024 * 1000}));
}
BENCHMARK(BM_IndicesThousandDocuments);

void BM_LocalShapeOfThreeDims(benchmark::State& state) {
  const Layout layout = layout_of("a=4,b=8", "S(0),S(2)", {1000, 1000, 1000});
  for (auto _ : state) benchmark::DoNotOptimize(local_shape(layout, 31));
}
BENCHMARK(BM_LocalShapeOfThreeDims);

void BM_MaxLocalBytesOf32Ranks(benchmark::State& state) {
  const Layout layout = layout_of("a=2,b=2,c=2,d=2,e=2", "S(0),S(0),S(1),S(1),S(2)", {1000, 1000, 1000});
  for (auto _ : state) benchmark::DoNotOptimize(max_local_bytes(layout));
}
BENCHMARK(BM_MaxLocalBytesOf32Ranks);

void BM_EquivalentNestedAndFlat(benchmark::State& state) {
  const Layout nested = layout_of("a=4,b=8", "S(0),S(0)", {1024, 1024});
  const Layout flat = layout_of("ab=32", "S(0)", {1024, 1024});
  for (auto _ : state) benchmark::DoNotOptimize(equivalent(nested, flat));
}
BENCHMARK(BM_EquivalentNestedAndFlat);

void BM_MakeLayout(benchmark::State& state) {
  const Layout layout = layout_of("a=4,b=8", "S(0),S(2)", {1000, 1000, 1000});
  for (auto _ : state) {
    benchmark::DoNotOptimize(make_layout(layout.mesh, layout.placements, layout.shape, layout.dtype));
  }
}
BENCHMARK(BM_MakeLayout);

}  // namespace
}  // namespace cp
