// What `cpsim fuzz` judges in a second, on one core and on two: whole cases as it draws them, with their
// orders, faults and laws.
//
// small_redistributions: of at most 8 ranks, beside sgemm of 256 x 256 (`sgemms` a second on the same cores),
// so that machines can be compared. all: whatever is drawn, planning over a thousand ranks too.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>
#include <cblas.h>

#include "shared/mesh/mesh.h"
#include "sim/fuzz/draw.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {
namespace {

constexpr int kCases = 2000;
constexpr int kSmallRanks = 8;

bool is_small(const proto::FuzzCase& drawn) {
  if (!drawn.has_redistribute()) return true;
  const proto::Redistribute& job = drawn.redistribute();
  return std::max(Mesh::parse(job.mesh()).size(),
                  job.to_mesh().empty() ? 0 : Mesh::parse(job.to_mesh()).size()) <= kSmallRanks;
}

std::vector<proto::FuzzCase> drawn(FuzzTarget target, bool small) {
  std::vector<proto::FuzzCase> cases;
  for (std::uint64_t number = 0; cases.size() < kCases; ++number) {
    proto::FuzzCase next = draw_case(target, 1, number);
    if (!small || is_small(next)) cases.push_back(std::move(next));
  }
  return cases;
}

void judge_all(benchmark::State& state, const std::vector<proto::FuzzCase>& cases) {
  // Each thread begins elsewhere.
  std::size_t at = cases.size() * static_cast<std::size_t>(state.thread_index()) /
                   static_cast<std::size_t>(state.threads());
  for (auto _ : state) {
    const Judgement judgement = judge(cases[at]);
    if (judgement.finding) state.SkipWithError(judgement.finding->message().c_str());
    at = (at + 1) % cases.size();
  }
  state.SetItemsProcessed(state.iterations());
}

void small_redistributions(benchmark::State& state) {
  static const std::vector<proto::FuzzCase> cases = drawn(FuzzTarget::redistribute, true);
  judge_all(state, cases);
}
void redistributions(benchmark::State& state) {
  static const std::vector<proto::FuzzCase> cases = drawn(FuzzTarget::redistribute, false);
  judge_all(state, cases);
}
void attention(benchmark::State& state) {
  static const std::vector<proto::FuzzCase> cases = drawn(FuzzTarget::attention, false);
  judge_all(state, cases);
}
void sgemm(benchmark::State& state) {
  constexpr int kSize = 256;
  const std::vector<float> a(kSize * kSize, 1.5F), b(kSize * kSize, 0.5F);
  std::vector<float> c(kSize * kSize);
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1, a.data(), kSize, b.data(),
                kSize, 0, c.data(), kSize);
    benchmark::DoNotOptimize(c.data());
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(small_redistributions)
    ->Threads(1)
    ->Threads(2)
    ->UseRealTime()
    ->Iterations(kCases)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(redistributions)
    ->Threads(1)
    ->Threads(2)
    ->UseRealTime()
    ->Iterations(kCases)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(attention)
    ->Threads(1)
    ->Threads(2)
    ->UseRealTime()
    ->Iterations(kCases / 4)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(sgemm)->Threads(1)->Threads(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cp::sim
