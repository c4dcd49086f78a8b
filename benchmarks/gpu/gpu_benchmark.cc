// The GPU's device beside what it stands on, by CUDA's events. Each rate is a median, and so is its share of
// the library's own. Says "no GPU" and why, and ends well where there is none. Exit code 1 where a benchmark
// ended by an error, which stands in its line.
//   --check   Exit code 1 also where a target (targets.h) was missed or nothing with a target has run, and
//             where there is no GPU. What was missed stands in the last lines.
#include <algorithm>
#include <cstdio>
#include <string_view>

#include <benchmark/benchmark.h>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "runtime/cuda/visible_gpus.h"

int main(int argc, char** argv) {
  const auto is_check = [](std::string_view argument) { return argument == "--check"; };
  char** const end = std::remove_if(argv + 1, argv + argc, is_check);
  const bool checks = end != argv + argc;
  argc = static_cast<int>(end - argv);
  if (const auto visible = cp::runtime::visible_gpus(); visible.gpus.empty()) {
    std::printf("no GPU: %s\n", visible.why_none.c_str());
    return checks ? 1 : 0;
  }
  cp::benchmarks::register_attention();
  cp::benchmarks::register_ring();
  cp::benchmarks::register_exact();
  cp::benchmarks::register_moves();
  cp::benchmarks::register_rows();
  cp::benchmarks::register_host_cost();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (cp::benchmarks::any_failed()) return 1;
  if (!checks) return 0;
  const std::vector<std::string> missed = cp::benchmarks::missed_targets(cp::benchmarks::measured());
  for (const std::string& one : missed) std::printf("missed: %s\n", one.c_str());
  return missed.empty() ? 0 : 1;
}
