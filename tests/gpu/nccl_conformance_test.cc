// The NCCL device under the conformance suite. Some ranks have no part in some of its plans, so groups have
// ids of their own.
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/target.h"
#include "tests/conformance/device_suite.h"
#include "tests/conformance/process_world.h"
#include "tests/gpu/gpu_ranks.h"

namespace cp::conformance {
namespace {

using cp::testing::GpuJob;
using runtime::NcclDevice;

#ifdef CP_GPU_EMULATED

// A thread for each rank and run.
class NcclWorld final : public DeviceWorld {
 public:
  NcclWorld(int world_size, bool graphs)
      : job_(world_size), graphs_(graphs), devices_(static_cast<std::size_t>(world_size)) {
    for (Rank rank = 0; rank < world_size; ++rank) traces_.emplace_back().rank = rank;
  }
  // Together, as the ends of processes are.
  ~NcclWorld() override {
    std::vector<std::jthread> threads;
    for (auto& device : devices_) threads.emplace_back([&device] { device.reset(); });
  }

  void run(const std::function<void(Rank, Device&)>& body) override {
    std::mutex mutex;
    std::exception_ptr first;
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          run_rank(static_cast<Rank>(i), body);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
    threads.clear();
    if (first) std::rethrow_exception(first);
  }
  void share(std::vector<Contents>&) override {}  // one process
  std::vector<RankTrace>& traces() override { return traces_; }
  void clear_traces() override {
    for (RankTrace& trace : traces_) trace.issued.clear(), trace.observed.clear();
  }

 private:
  void run_rank(Rank rank, const std::function<void(Rank, Device&)>& body) {
    const auto index = static_cast<std::size_t>(rank);
    if (!devices_[index]) {
      runtime::NcclOptions options = job_.options(rank);
      options.graphs = graphs_;
      devices_[index] = std::make_unique<NcclDevice>(options);
    }
    cp::testing::use_gpu(rank);
    body(rank, *devices_[index]);
    for (OpRecord& record : devices_[index]->take_observed())
      traces_[index].observed.push_back(std::move(record));
  }

  const GpuJob job_;
  const bool graphs_;
  std::vector<std::unique_ptr<NcclDevice>> devices_;
  std::vector<RankTrace> traces_;
};

std::unique_ptr<DeviceWorld> make_world(int world_size, bool graphs) {
  return std::make_unique<NcclWorld>(world_size, graphs);
}

#else

std::unique_ptr<DeviceWorld> make_world(int world_size, bool graphs) {
  const auto job = std::make_shared<GpuJob>(world_size);
  return std::make_unique<ProcessWorld>(world_size, [job, graphs](Rank rank) {
    cp::testing::become_rank(rank, job->world_size());
    runtime::NcclOptions options = job->options(rank);
    options.graphs = graphs;
    return std::make_unique<NcclDevice>(options);
  });
}

#endif

DeviceFactory nccl_factory(bool graphs) {
  return {.name = graphs ? "NcclGraphs" : "Nccl",
          .target = common_target(),
          .host_memory = false,
          .make = [graphs](int world_size) { return make_world(world_size, graphs); },
          .why_not = cp::testing::why_no_gpu};
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceConformance, ::testing::Values(nccl_factory(false)), factory_name);
// Kept plans as CUDA graphs; what is not kept is launched as before.
INSTANTIATE_TEST_SUITE_P(NcclGraphs, DeviceConformance, ::testing::Values(nccl_factory(true)), factory_name);

}  // namespace
}  // namespace cp::conformance
