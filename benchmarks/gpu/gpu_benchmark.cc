// The GPU's device beside what it stands on, by CUDA's events. Each rate is a median, and so is its share of
// the library's own. Says "no GPU" and why, and ends well where there is none. Exit code 1 where a benchmark
// ended by an error, which stands in its line.
#include <cstdio>

#include <benchmark/benchmark.h>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "runtime/cuda/visible_gpus.h"

int main(int argc, char** argv) {
  if (const auto visible = cp::runtime::visible_gpus(); visible.gpus.empty()) {
    std::printf("no GPU: %s\n", visible.why_none.c_str());
    return 0;
  }
  cp::benchmarks::register_attention();
  cp::benchmarks::register_ring();
  cp::benchmarks::register_moves();
  cp::benchmarks::register_host_cost();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return cp::benchmarks::any_failed() ? 1 : 0;
}
