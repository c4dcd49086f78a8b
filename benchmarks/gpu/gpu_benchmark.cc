// The GPU's device beside what it stands on, by CUDA's events. Each rate is a median, and so is its share of the library's own.
// Says "no GPU" and ends well where there is none.
#include <cstdio>

#include <benchmark/benchmark.h>

#include "benchmarks/gpu/suites.h"
#include "runtime/nccl/nccl_device.h"

int main(int argc, char** argv) {
  if (cp::runtime::gpu_count() == 0) {
    std::puts("no GPU");
    return 0;
  }
  cp::benchmarks::register_attention();
  cp::benchmarks::register_ring();
  cp::benchmarks::register_moves();
  cp::benchmarks::register_host_cost();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
