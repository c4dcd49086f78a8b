// Planning a redistribution: choosing the chain of moves, and lowering it to one rank's plan. Nothing is
// cached between iterations. Each case cycles through several requests, so that the figure is no single
// request's luck.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "shared/redistribute/lower.h"
#include "shared/redistribute/redistribution.h"

namespace {

struct Request {
  std::string from, to;
};

struct Case {
  std::string mesh;
  cp::Shape shape;
  std::vector<Request> requests;
};

const Case& two_axes() {
  static const Case kCase = {"dp=2,tp=4",
                             {1024, 1024, 256},
                             {{"S(0),S(1)", "S(1),S(0)"},
                              {"S(0),S(0)", "S(1),S(1)"},
                              {"S(0),R", "R,S(2)"},
                              {"P(sum),S(1)", "S(0),R"},
                              {"P(sum),P(sum)", "S(0),S(1)"},
                              {"S(0)[1],S(0)[0]", "S(0),S(0)"}}};
  return kCase;
}

const Case& three_axes() {
  static const Case kCase = {"dp=2,cp=2,tp=2",
                             {1024, 1024, 256},
                             {{"S(0)[0],S(0)[1],S(0)[2]", "S(1)[0],S(1)[1],S(1)[2]"},
                              {"S(0),S(1),S(2)", "S(2),S(1),S(0)"},
                              {"S(1),R,S(0)", "R,S(0),S(0)"},
                              {"P(sum),P(sum),S(0)", "S(0),S(0),S(0)"},
                              {"S(0),S(0),S(1)", "S(0),S(1),S(2)"}}};
  return kCase;
}

const Case& five_axes() {
  static const Case kCase = {"a=2,b=2,c=2,d=2,e=2",
                             {1024, 1024, 256},
                             {{"S(0),S(0),S(1),S(1),S(2)", "S(2),S(1),S(1),S(0),S(0)"},
                              {"S(0),S(0),S(0),S(0),S(0)", "S(1),S(1),S(1),S(1),S(1)"},
                              {"R,R,S(0),S(1),S(2)", "S(2),S(1),S(0),R,R"},
                              {"P(sum),P(sum),S(0),S(0),R", "S(1),S(0),S(0),R,S(2)"}}};
  return kCase;
}

const Case& eight_axes() {
  static const Case kCase = {
      "a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2",
      {4096, 32, 128},
      {{"S(0),S(0),S(0),S(0),S(1),S(1),S(1),S(1)", "S(1),S(1),S(1),S(1),S(0),S(0),S(0),S(0)"},
       {"S(0),S(0,head_tail),S(1),R,S(0),S(2),R,R", "R,R,R,R,R,R,R,R"},
       {"P(sum),P(sum),S(0),S(0),R,S(1),S(2),R", "S(1),S(0),S(0),R,S(2),R,R,P(sum)"}}};
  return kCase;
}

const Case& twelve_axes() {
  static const Case kCase = {
      "a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2,i=2,j=2,k=2,l=2",
      {4097, 333, 129},
      {{"S(0),S(0,head_tail),S(1),R,S(0),S(2),S(2),R,S(0,balanced),S(1),R,S(2)",
        "S(1),S(1),S(1),S(1),S(2),S(2),S(0,striped:3),S(0),S(0),R,R,S(0)"},
       {"S(0),S(0,head_tail),S(1),R,S(0),S(2),S(2),R,S(0,balanced),S(1),R,S(2)", "R,R,R,R,R,R,R,R,R,R,R,R"},
       {"P(sum),P(sum),S(1),R,S(0),S(2),P(sum),R,S(0),S(1),R,S(2)",
        "S(1),S(1),S(1),S(1),S(2),S(2),S(0),S(0),S(0),R,R,P(sum)"}}};
  return kCase;
}

const Case& ranks_1024() {
  static const Case kCase = {
      "dp=1024",
      {1048577, 4},
      {{"S(0)", "R"}, {"S(0,balanced)", "R"}, {"P(sum)", "S(0)"}, {"S(0,head_tail)", "R"}}};
  return kCase;
}

const Case& ranks_16384() {
  static const Case kCase = {
      "dp=16384", {1048577, 4}, {{"S(0)", "R"}, {"S(0,balanced)", "R"}, {"P(sum)", "S(0)"}, {"P(sum)", "R"}}};
  return kCase;
}

void run(benchmark::State& state, const Case& test, bool lowers) {
  const cp::Mesh mesh = cp::Mesh::parse(test.mesh);
  std::vector<std::pair<cp::Layout, cp::Layout>> layouts;
  for (const Request& request : test.requests) {
    layouts.emplace_back(cp::parse_layout(request.from, mesh, test.shape, cp::DType::bf16),
                         cp::parse_layout(request.to, mesh, test.shape, cp::DType::bf16));
  }
  if (state.range(0) >= 0) {
    const auto one = layouts[static_cast<std::size_t>(state.range(0))];
    layouts.assign(1, one);
    state.SetLabel(test.requests[static_cast<std::size_t>(state.range(0))].from + " -> " +
                   test.requests[static_cast<std::size_t>(state.range(0))].to);
  }
  std::size_t next = 0;
  for (auto _ : state) {
    const auto& [from, to] = layouts[next++ % layouts.size()];
    const cp::Redistribution redistribution = cp::plan_redistribution(from, to);
    benchmark::DoNotOptimize(redistribution.time_us);
    if (lowers) benchmark::DoNotOptimize(cp::lower(redistribution, 1).arena_bytes);
  }
}

void plan_2d(benchmark::State& state) { run(state, two_axes(), false); }
void plan_and_lower_2d(benchmark::State& state) { run(state, two_axes(), true); }
void plan_3d(benchmark::State& state) { run(state, three_axes(), false); }
void plan_and_lower_3d(benchmark::State& state) { run(state, three_axes(), true); }
void plan_5d(benchmark::State& state) { run(state, five_axes(), false); }

void plan_8d(benchmark::State& state) { run(state, eight_axes(), false); }
void plan_12d_of_4096_ranks(benchmark::State& state) { run(state, twelve_axes(), false); }
void plan_and_lower_one_of_1024(benchmark::State& state) { run(state, ranks_1024(), true); }
void plan_and_lower_one_of_16384(benchmark::State& state) { run(state, ranks_16384(), true); }

BENCHMARK(plan_2d)->DenseRange(-1, 5)->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_and_lower_2d)->DenseRange(-1, 5)->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_3d)->DenseRange(-1, 4)->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_and_lower_3d)->Arg(-1)->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_5d)->DenseRange(-1, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_8d)->DenseRange(-1, 2)->Unit(benchmark::kMillisecond);
BENCHMARK(plan_12d_of_4096_ranks)->DenseRange(-1, 2)->Unit(benchmark::kMillisecond);
BENCHMARK(plan_and_lower_one_of_1024)->DenseRange(-1, 3)->Unit(benchmark::kMillisecond);
BENCHMARK(plan_and_lower_one_of_16384)->DenseRange(-1, 3)->Unit(benchmark::kMillisecond);

}  // namespace
