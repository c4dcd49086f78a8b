#include "runtime/cuda/host_kernels_on_streams.h"

#include <cstddef>
#include <utility>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_graphs.h"
#include "shared/base/index.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/host_place.h"

namespace cp::runtime {

// What CUDA hands to the function that it calls.
struct HostKernelsOnStreams::Call {
  const Kernel* kernel = nullptr;
  RebindableMemory::Version* memory = nullptr;
  std::int64_t iteration = 0;
  bool of_graph = false;  // which calls it any number of times, so that its memory is in use for good

  // Does not throw: the plan was checked when it was prepared, and an exception could go nowhere.
  static void run(void* data) noexcept {
    const Call& call = *static_cast<const Call*>(data);
    run_kernel(*call.kernel, call.memory->memory, call.iteration);
    if (!call.of_graph) --call.memory->under_way;
  }
};

// Those of one kernel: for each iteration, with each version of the memory, as a launch and in a graph.
struct HostKernelsOnStreams::Calls {
  struct Of {
    const RebindableMemory::Version* memory;
    bool of_graph;
    std::vector<Call> iterations;
  };
  const Kernel* kernel = nullptr;
  std::int64_t iterations = 0;
  std::vector<Of> made;

  Call& find(RebindableMemory::Version& memory, bool of_graph, std::int64_t iteration) {
    for (Of& of : made) {
      if (of.memory == &memory && of.of_graph == of_graph) return of.iterations[idx(iteration)];
    }
    Of& of = made.emplace_back(Of{&memory, of_graph, {}});
    for (std::int64_t i = 0; i < iterations; ++i)
      of.iterations.push_back({.kernel = kernel, .memory = &memory, .iteration = i, .of_graph = of_graph});
    return of.iterations[idx(iteration)];
  }
};

HostKernelsOnStreams::HostKernelsOnStreams(const Plan& plan, const CudaMemory& memory)
    : memory_(memory), on_host_(plan, HostMemory::without_addresses(plan)) {
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (lies_on_host(plan.buffers[i]))
      bindings_.push_back({static_cast<BufferId>(i), nullptr, plan.buffers[i].bytes()});
  }
}

HostKernelsOnStreams::~HostKernelsOnStreams() = default;

PreparedKernel HostKernelsOnStreams::prepare(const Kernel& kernel, std::int64_t iterations) {
  calls_.push_back(std::make_unique<Calls>(Calls{&kernel, iterations, {}}));
  return [this, calls = calls_.back().get()](std::int64_t iteration, cudaStream_t stream) {
    launch(*calls, iteration, stream);
  };
}

void HostKernelsOnStreams::launch(Calls& calls, std::int64_t iteration, cudaStream_t stream) {
  // Launches before this one keep the addresses of then.
  for (Binding& binding : bindings_) binding.data = memory_.data(binding.buffer);
  on_host_.bind(bindings_);
  RebindableMemory::Version& memory = on_host_.current();
  ++memory.under_way;
  CP_CUDA(cudaLaunchHostFunc(stream, Call::run, &calls.find(memory, is_captured(stream), iteration)));
}

}  // namespace cp::runtime
