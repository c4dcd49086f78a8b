#include "tests/gpu/kernel_run.h"

#include <cmath>
#include <cstring>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/fused_kernels.h"
#include "runtime/cuda/step_kernels.h"
#include "shared/base/text.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/builder.h"
#include "shared/plan/step_rules.h"
#include "tests/support/values.h"

namespace cp::testing {

std::string no_gpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return str("no GPU: ", cudaGetErrorString(error));
  return count == 0 ? "no GPU" : "";
}

BufferId KernelRun::add(DType dtype, std::vector<std::byte> bytes) {
  const auto id = static_cast<BufferId>(plan_.buffers.size());
  Buffer buffer;
  buffer.name = str("b", id), buffer.kind = BufferKind::inout, buffer.dtype = dtype;
  buffer.numel = static_cast<std::int64_t>(bytes.size()) / size_bytes(dtype);
  plan_.buffers.push_back(buffer);
  host_.push_back(bytes), gpu_.push_back(std::move(bytes));
  return id;
}

BufferId KernelRun::add(DType dtype, const std::vector<double>& values) {
  return add(dtype, encode(dtype, values));
}

void KernelRun::run(const Kernel& kernel, std::int64_t iteration) {
  Bindings bindings;
  for (std::size_t i = 0; i < host_.size(); ++i) {
    bindings.push_back(
        {static_cast<BufferId>(i), host_[i].data(), static_cast<std::int64_t>(host_[i].size())});
  }
  run_kernel(kernel, HostMemory(plan_, bindings), iteration);
  run_on_gpu(kernel, iteration);
}

void KernelRun::run_on_gpu(const Kernel& kernel, std::int64_t iteration) {
  Plan plan = plan_;
  plan.target = host_target();
  plan.streams = {"compute"};
  Step only;
  only.work = kernel;
  plan.segments.emplace_back(Repeat{iteration + 1, {only}});
  const Step& step = std::get<Repeat>(plan.segments[0]).steps[0];
  validate_step(plan, step, iteration + 1);
  run_on_gpu([&](const runtime::CudaMemory& memory) {
    runtime::LibraryKernels libraries;
    runtime::StepKernels kernels(plan, identity_streams(plan), memory, libraries);
    kernels.launch(steps_of(plan)[0], iteration, nullptr);
    CP_CUDA(cudaDeviceSynchronize());
  });
}

void KernelRun::run_on_gpu(const std::function<void(const runtime::CudaMemory&)>& enqueue) {
  const runtime::CudaMemory memory(plan_, {});
  for (std::size_t i = 0; i < gpu_.size(); ++i) {
    if (gpu_[i].empty()) continue;
    CP_CUDA(cudaMemcpy(memory.data(static_cast<BufferId>(i)), gpu_[i].data(), gpu_[i].size(),
                       cudaMemcpyHostToDevice));
  }
  enqueue(memory);
  CP_CUDA(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < gpu_.size(); ++i) {
    if (gpu_[i].empty()) continue;
    CP_CUDA(cudaMemcpy(gpu_[i].data(), memory.data(static_cast<BufferId>(i)), gpu_[i].size(),
                       cudaMemcpyDeviceToHost));
  }
}

std::vector<double> KernelRun::host_values(BufferId buffer) const {
  return decode(plan_.buffers[static_cast<std::size_t>(buffer)].dtype, host(buffer));
}
std::vector<double> KernelRun::gpu_values(BufferId buffer) const {
  return decode(plan_.buffers[static_cast<std::size_t>(buffer)].dtype, gpu(buffer));
}

std::vector<double> KernelRun::elements(const View& view, const std::vector<double>& values) {
  std::vector<double> of_view;
  for (std::int64_t n = 0; n < view.numel(); ++n) {
    std::int64_t rest = n, offset = view.offset;
    for (std::size_t dim = view.shape.size(); dim-- > 0; rest /= view.shape[dim]) {
      offset += rest % view.shape[dim] * view.strides[dim];
    }
    of_view.push_back(values.at(static_cast<std::size_t>(offset)));
  }
  return of_view;
}

std::string difference(const KernelRun& run, BufferId buffer, Nans nans) {
  const auto &host = run.host(buffer), &gpu = run.gpu(buffer);
  const std::vector<double> on_host = run.host_values(buffer), on_gpu = run.gpu_values(buffer);
  const std::size_t size = host.size() / std::max<std::size_t>(on_host.size(), 1);
  for (std::size_t i = 0; i < on_host.size(); ++i) {
    const bool same_bits = std::memcmp(host.data() + i * size, gpu.data() + i * size, size) == 0;
    if (same_bits || (nans == Nans::alike && std::isnan(on_host[i]) && std::isnan(on_gpu[i]))) continue;
    return str("element ", i, " is ", on_gpu[i], " on the GPU and ", on_host[i], " on the host");
  }
  return "";
}

}  // namespace cp::testing
