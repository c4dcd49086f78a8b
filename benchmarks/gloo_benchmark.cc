// What plans cost on Gloo: the same collectives by a plan on the Gloo device and written directly on Gloo, on
// four processes over loopback; and how long cprun takes from its start to the end of a plan with one
// collective.
//
// A round is a number of steps one way and then the other, so that what else the machine does meets both, and
// enough of them that the wait for a thread to start counts little. Told are medians of the rounds, of the
// time that passed and of rank 0's CPU time. On one process Gloo has next to nothing to do: what a plan's
// step takes there is the plan's, whatever else the machine does.
//
//   gloo_benchmark [collective]
#include <cstdio>

#ifndef CP_HAVE_GLOO

int main() { std::puts("built without Gloo (libgloo-dev)"); }

#else

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "runtime/gloo/direct_gloo.h"
#include "runtime/gloo/gloo_device.h"
#include "shared/plan/builder.h"
#include "shared/plan/session.h"

namespace cp::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// ---- one of them, both ways ----

struct Operation {
  const char* name = "";
  bool in_is_blocks = false, out_is_blocks = false;  // one for each rank
  void (DirectGloo::*direct)(float* in, float* out, std::size_t numel) = nullptr;
  std::function<Collective(Rank, int num_ranks, BufferId in, BufferId out, std::int64_t numel)> step;
};

Collective exchange_step(Rank rank, int num_ranks, BufferId in, BufferId out, std::int64_t numel) {
  Exchange exchange{0, {}, {}, {}};
  std::vector<Count> counts;
  for (Rank from = 0; from < num_ranks; ++from) {
    for (Rank to = 0; to < num_ranks; ++to) {
      if (from != to) counts.push_back({from, to, numel});
    }
    if (from == rank) continue;
    exchange.sends.push_back({from, flat_view(in, from * numel, numel)});
    exchange.recvs.push_back({from, flat_view(out, from * numel, numel)});
  }
  exchange.counts = counts_digest(counts);
  return exchange;
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> kOperations = {
      {"all_gather", false, true, &DirectGloo::all_gather,
       [](Rank, int num_ranks, BufferId in, BufferId out, std::int64_t numel) {
         return AllGather{0, flat_view(in, 0, numel), flat_view(out, 0, num_ranks * numel)};
       }},
      {"all_reduce", false, false, &DirectGloo::all_reduce,
       [](Rank, int, BufferId in, BufferId out, std::int64_t numel) {
         return AllReduce{0, ReduceOp::sum, flat_view(in, 0, numel), flat_view(out, 0, numel)};
       }},
      {"exchange", true, true, &DirectGloo::exchange, exchange_step}};
  return kOperations;
}

// What one rank of so many has.
struct Worker {
  Rank rank = 0;
  int num_ranks = 1;
  DirectGloo direct;
  GlooDevice device;

  Worker(Rank own, int count, const std::string& store_directory)
      : rank(own),
        num_ranks(count),
        direct(own, count, store_directory),
        device({.rank = own, .store_directory = store_directory}) {}

  std::int64_t numel(bool is_blocks, std::int64_t block) const {
    return is_blocks ? num_ranks * block : block;
  }
};

Plan plan_of(const Operation& operation, Rank self, int num_ranks, std::int64_t numel, std::int64_t steps) {
  PlanBuilder b(self, host_target());
  std::vector<Rank> all;
  for (Rank rank = 0; rank < num_ranks; ++rank) all.push_back(rank);
  const auto count = [&](bool is_blocks) { return is_blocks ? num_ranks * numel : numel; };
  b.group("all", all);
  const BufferId in = b.input("in", DType::f32, count(operation.in_is_blocks)),
                 out = b.inout("out", DType::f32, count(operation.out_is_blocks));
  const StreamId stream = b.stream("main");
  b.begin_repeat(steps);
  b.add(stream, operation.step(self, num_ranks, in, out, numel));
  b.end_repeat();
  return std::move(b).build({});
}

struct Times {
  double wall_us = 0, cpu_us = 0;  // of a step; the CPU's of all threads of this process
};

Times operator-(const Times& a, const Times& b) { return {a.wall_us - b.wall_us, a.cpu_us - b.cpu_us}; }

double cpu_us() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

template <class Run>
Times time_of(std::int64_t steps, Run run) {
  const double cpu_begin_us = cpu_us();
  const auto begin = Clock::now();
  run();
  const double wall_us = us_since(begin), count = static_cast<double>(steps);
  return {wall_us / count, (cpu_us() - cpu_begin_us) / count};
}

Times median(const std::vector<Times>& times) {
  std::vector<double> wall, cpu;
  for (const Times& one : times) wall.push_back(one.wall_us), cpu.push_back(one.cpu_us);
  return {median(wall), median(cpu)};
}

struct Comparison {
  Times by_hand, by_plan, overhead;  // the last: the median of the rounds' differences
};

struct Size {
  std::int64_t bytes = 0, steps = 0;
  int rounds = 0;
};

Comparison measure(const Operation& operation, const Size& size, Worker& worker) {
  DirectGloo& direct = worker.direct;
  GlooDevice& device = worker.device;
  const std::int64_t numel = size.bytes / 4, steps = size.steps;
  const auto zeros = [&](bool is_blocks) {
    return std::vector<float>(static_cast<std::size_t>(worker.numel(is_blocks, numel)));
  };
  std::vector<float> in = zeros(operation.in_is_blocks), out = zeros(operation.out_is_blocks);
  const Plan plan = plan_of(operation, worker.rank, worker.num_ranks, numel, steps);
  const auto bytes_of = [](const std::vector<float>& data) {
    return static_cast<std::int64_t>(4 * data.size());
  };
  PlanSession session(device, plan, Bindings{{0, in.data(), bytes_of(in)}, {1, out.data(), bytes_of(out)}});
  std::vector<Times> by_hand, by_plan, overhead;
  for (int round = -1; round < size.rounds; ++round) {
    direct.barrier();
    const Times hand = time_of(steps, [&] {
      for (std::int64_t i = 0; i < steps; ++i)
        (direct.*operation.direct)(in.data(), out.data(), static_cast<std::size_t>(numel));
    });
    direct.barrier();
    const Times of_plan = time_of(steps, [&] {
      RankTrace trace;  // as cprun runs plans
      session.run({.trace = &trace});
    });
    device.take_observed(), device.take_times();
    if (round < 0) continue;  // warm caches and connections first
    by_hand.push_back(hand), by_plan.push_back(of_plan), overhead.push_back(of_plan - hand);
  }
  return {median(by_hand), median(by_plan), median(overhead)};
}

void print_comparison(const char* name, std::int64_t bytes, const Comparison& compared) {
  const auto columns = [](double hand, double plan, double overhead) {
    std::printf("  %9.1f  %9.1f  %8.1f  %5.1f %%", hand, plan, overhead, 100 * overhead / hand);
  };
  std::printf("%-10s  %8lld", name, static_cast<long long>(bytes));
  columns(compared.by_hand.wall_us, compared.by_plan.wall_us, compared.overhead.wall_us);
  columns(compared.by_hand.cpu_us, compared.by_plan.cpu_us, compared.overhead.cpu_us);
  std::puts("");
  std::fflush(stdout);
}

void run_rank(Rank rank, int num_ranks, const std::vector<Size>& sizes, const std::string& store_directory,
              const std::string& only) {
  Worker worker(rank, num_ranks, store_directory);
  for (const Size& size : sizes) {
    for (const Operation& operation : operations()) {
      if (!only.empty() && only != operation.name) continue;
      const Comparison compared = measure(operation, size, worker);
      if (rank == 0) print_comparison(operation.name, size.bytes, compared);
    }
  }
}

// The same plans, without and with checksums of payloads.
Comparison measure_checksums(const Operation& operation, const Size& size, Rank rank, int num_ranks,
                             GlooDevice& plain, GlooDevice& checked) {
  const std::int64_t numel = size.bytes / 4;
  const auto count = [&](bool is_blocks) {
    return static_cast<std::size_t>(is_blocks ? num_ranks * numel : numel);
  };
  std::vector<float> in(count(operation.in_is_blocks)), out(count(operation.out_is_blocks));
  const Plan plan = plan_of(operation, rank, num_ranks, numel, size.steps);
  std::vector<Times> without, with, more;
  const auto time = [&](GlooDevice& device) {
    PlanSession session(
        device, plan,
        Bindings{{0, in.data(), plan.buffers[0].bytes()}, {1, out.data(), plan.buffers[1].bytes()}});
    session.run();  // together
    const Times taken = time_of(size.steps, [&] { session.run(); });
    device.take_observed(), device.take_times();
    return taken;
  };
  for (int round = -1; round < size.rounds; ++round) {
    const Times first = time(plain), second = time(checked);
    if (round < 0) continue;
    without.push_back(first), with.push_back(second), more.push_back(second - first);
  }
  return {median(without), median(with), median(more)};
}

void run_rank_with_checksums(Rank rank, int num_ranks, const std::vector<Size>& sizes,
                             const std::string& directory, const std::string& only) {
  GlooDevice plain({.rank = rank, .store_directory = directory + "/plain"});
  GlooDevice checked({.rank = rank, .store_directory = directory + "/checked", .checksums = Checksums::end});
  for (const Size& size : sizes) {
    for (const Operation& operation : operations()) {
      if (!only.empty() && only != operation.name) continue;
      const Comparison compared = measure_checksums(operation, size, rank, num_ranks, plain, checked);
      if (rank == 0) print_comparison(operation.name, size.bytes, compared);
    }
  }
}

using RunRank = void (*)(Rank, int num_ranks, const std::vector<Size>& sizes, const std::string& directory,
                         const std::string& only);

void on_processes(int num_ranks, const std::vector<Size>& sizes, const std::string& only, const char* title,
                  RunRank run) {
  std::printf("\n%d processes; us of a step: %s, what that is more\n", num_ranks, title);
  std::printf("%-10s  %8s  %-37s  CPU\n", "collective", "bytes", "time");
  std::fflush(stdout);
  std::string directory = (std::filesystem::temp_directory_path() / "cpsim_XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return std::perror("mkdtemp");
  for (const char* folder : {"/plain", "/checked"}) std::filesystem::create_directory(directory + folder);
  std::vector<pid_t> children;
  for (Rank rank = 0; rank < num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      run(rank, num_ranks, sizes, directory, only);
      std::fflush(stdout);
      std::_Exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  std::filesystem::remove_all(directory);
}

// ---- cprun ----

constexpr const char* kTiny = "redistribute { mesh: 'dp=8' shape: '64' from: 'S(0)' to: 'R' }\n";

// Of the cprun that was built beside this program.
void time_start() {
  const std::filesystem::path cprun = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cprun",
                              scenario = std::filesystem::temp_directory_path() /
                                         ("gloo_benchmark_" + std::to_string(getpid()) + ".txtpb");
  if (!std::filesystem::exists(cprun))
    return static_cast<void>(std::printf("%s is not built\n", cprun.c_str()));
  std::ofstream(scenario) << kTiny;
  const std::string command =
      cprun.string() + " --nproc-per-node 8 " + scenario.string() + " > /dev/null 2>&1";
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    const auto begin = Clock::now();
    if (std::system(command.c_str()) != 0) std::printf("failed: %s\n", command.c_str());
    seconds.push_back(us_since(begin) / 1e6);
  }
  std::filesystem::remove(scenario);
  std::printf("\ncprun, 8 processes, from its start to its end with one collective: %.3f s\n",
              median(seconds));
}

}  // namespace
}  // namespace cp::runtime

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  constexpr const char* kDirect = "directly on Gloo, by a plan";
  cp::runtime::on_processes(1, {{4096, 1000, 31}}, only, kDirect, cp::runtime::run_rank);
  cp::runtime::on_processes(4, {{4096, 100, 15}, {1 << 20, 50, 11}}, only, kDirect, cp::runtime::run_rank);
  for (const int processes : {2, 4}) {
    cp::runtime::on_processes(processes, {{1 << 20, 50, 21}}, only, "by a plan, with checksums of payloads",
                              cp::runtime::run_rank_with_checksums);
  }
  cp::runtime::time_start();
}

#endif
