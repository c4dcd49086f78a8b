#include "tests/gpu/gpu_ranks.h"

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <cuda_runtime_api.h>

#include "runtime/cuda/visible_gpus.h"
#include "runtime/errors.h"
#include "shared/base/digest.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"
#include "shared/plan/target.h"
#include "tests/gpu/slow_steps.h"

namespace cp::testing {
namespace {

// One text for each key, written once.
class FileStore {
 public:
  FileStore(std::string directory, std::chrono::milliseconds timeout)
      : directory_(std::move(directory)), timeout_(timeout) {}

  void set(const std::string& key, const std::string& text) const {
    const std::string made = str(path(key), ".new");
    std::ofstream(made, std::ios::binary) << text;
    std::filesystem::rename(made, path(key));
  }
  std::string get(const std::string& key) const {
    const auto until = std::chrono::steady_clock::now() + timeout_;
    while (!std::filesystem::exists(path(key))) {
      if (std::chrono::steady_clock::now() > until) throw runtime::Timeout(str("nobody has set ", key));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream in(path(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path(const std::string& key) const {
    return directory_ + "/" + to_string(Hasher().add(key).digest());
  }

  std::string directory_;
  std::chrono::milliseconds timeout_;
};

struct SeenGpus {
  int count = 0;
  std::string why_none;
};

#ifdef CP_GPU_EMULATED

SeenGpus seen_gpus() {
  const runtime::VisibleGpus visible = runtime::visible_gpus();
  return {static_cast<int>(visible.gpus.size()), visible.why_none};
}
std::string gpu_generation() { return runtime::gpu_target_of(0).name; }

#else

// Of a child: CUDA does not survive a fork.
const SeenGpus& seen_gpus() {
  static const SeenGpus seen = [] {
    const std::string said =
        run_processes(1, [](Rank) {
          const runtime::VisibleGpus visible = runtime::visible_gpus();
          return visible.gpus.empty() ? visible.why_none : str("gpus=", visible.gpus.size());
        }).front();
    return said.starts_with("gpus=") ? SeenGpus{std::atoi(said.c_str() + 5), ""} : SeenGpus{0, said};
  }();
  return seen;
}
std::string gpu_generation() {
  static const std::string name =
      run_processes(1, [](Rank) { return runtime::gpu_target_of(0).name; }).front();
  return name;
}

#endif

int gpus() { return seen_gpus().count; }

}  // namespace

const Target& target_of_the_gpus() { return gpu_target(gpu_generation()); }

std::string why_no_gpu() {
#ifndef CP_GPU_EMULATED
  const std::filesystem::directory_iterator threads("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) > 1) {
    return "ranks are forked, and this process has threads already: run each test in a process of its own, "
           "as ctest and the bundle's `run tests` do, with OPENBLAS_NUM_THREADS=1";
  }
#endif
  return gpus() > 0 ? "" : str("no GPU: ", seen_gpus().why_none);
}

GpuJob::GpuJob(int world_size) : world_size_(world_size) {
#ifndef CP_GPU_EMULATED
  static_cast<void>(gpus());  // known to the children
#endif
}

runtime::NcclOptions GpuJob::options(Rank rank) const {
  runtime::NcclOptions options;
  options.rank = rank;
  options.world_size = world_size_;
  options.cuda_device = rank % gpus();
  options.timeout = std::chrono::seconds(60);
  const FileStore store(directory_.path(), options.timeout);
  options.share = [store](const std::string& key, const std::optional<std::string>& id) {
    if (id) store.set(key, *id);
    return store.get(key);
  };
  options.agree = [store, rank](const Group& group, std::int64_t number, const std::string& own) {
    const std::string key = str("plans of ", canonical_name(group), " ", number, " of ");
    store.set(str(key, rank), own);
    std::vector<std::string> all;
    for (const Rank from : group.ranks) all.push_back(store.get(str(key, from)));
    return all;
  };
  for (Rank other = 0; other < world_size_; ++other) options.here.push_back(other);
  options.each_is_a_host = world_size_ > gpus();
  if (const char* seed = std::getenv("CP_SLOW_STEPS"))
    options.before_step =
        slow_at_random(std::strtoull(seed, nullptr, 10) * 1'000 + static_cast<std::uint64_t>(rank));
  return options;
}

runtime::NcclOptions GpuJob::splitting_options(Rank rank) const {
  runtime::NcclOptions options = this->options(rank);
  const FileStore store(directory_.path(), options.timeout);
  options.all_gather = [store, rank, size = world_size_](const std::string& key, const std::string& own) {
    store.set(str(key, " of ", rank), own);
    std::vector<std::string> all;
    for (Rank from = 0; from < size; ++from) all.push_back(store.get(str(key, " of ", from)));
    return all;
  };
  return options;
}

void use_gpu(Rank rank) { static_cast<void>(cudaSetDevice(rank % gpus())); }

// NCCL takes ranks of one GPU for different hosts, which talk over sockets.
void share_gpu(Rank rank) {
  setenv("NCCL_HOSTID", str("rank", rank).c_str(), 1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_NET", "Socket", 0);
  setenv("NCCL_MNNVL_ENABLE", "0", 0);
}
void share_no_gpu() {
  for (const char* name : {"NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"}) unsetenv(name);
}

void become_rank(Rank rank, int world_size) {
  if (world_size > gpus()) share_gpu(rank);
}

#ifdef CP_GPU_EMULATED

std::vector<std::string> run_gpu_ranks(int count, const std::function<std::string(Rank)>& body) {
  std::vector<std::string> said(static_cast<std::size_t>(count));
  std::vector<std::jthread> threads;
  for (Rank rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& own = said[static_cast<std::size_t>(rank)];
      try {
        own = body(rank);
      } catch (const std::exception& error) {
        own = error.what();
      }
    });
  }
  threads.clear();
  return said;
}

#else

std::vector<std::string> run_gpu_ranks(int count, const std::function<std::string(Rank)>& body) {
  static_cast<void>(gpus());  // known to the children
  return run_processes(
      count,
      [&](Rank rank) {
        become_rank(rank, count);
        return body(rank);
      },
      std::chrono::seconds(540));
}

#endif

}  // namespace cp::testing
