// Written as the project writes its kernels (runtime/cuda/kernel_launch.h), so that the tests can run them on
// the emulated GPU as well. In a program of yours, launch() would be kernel<<<blocks, threads, 0, stream>>>.
#include <cstddef>

#include <cuda_runtime_api.h>

#include "examples/own_kernels.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/kernel_launch.h"

namespace {

// Calls f(i) for each i below count.
template <class F>
struct ForEach {
  static constexpr int kThreads = 256;
  static constexpr const char* kName = F::kName;

  F f;
  std::int64_t count;

  CP_DEVICE void operator()(cp::runtime::Block& block) const {
    block.last([&](int thread) {
      const std::int64_t i = block.index() * kThreads + thread;
      if (i < count) f(i);
    });
  }
};

template <class F>
void launch_for_each(cudaStream_t stream, std::int64_t count, const F& f) {
  using Body = ForEach<F>;
  cp::runtime::launch(stream, {(count + Body::kThreads - 1) / Body::kThreads}, Body{f, count});
}

struct GradientOfLoss {
  static constexpr const char* kName = "gradient_of_loss";
  const float *out, *want;
  float *dout, *errors;
  CP_DEVICE void operator()(std::int64_t i) const { dout[i] = errors[i] = out[i] - want[i]; }
};

struct Descend {
  static constexpr const char* kName = "descend";
  float* x;
  const float* gradient;
  float rate;
  CP_DEVICE void operator()(std::int64_t i) const { x[i] -= rate * gradient[i]; }
};

class GpuKernels : public OwnKernels {
 public:
  GpuKernels() { CP_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  // Freeing waits until the GPU is done.
  ~GpuKernels() override {
    for (float* data : memory_) cudaFree(data);
    cudaStreamDestroy(stream_);
  }

  float* allocate(std::int64_t count) override {
    void* data = nullptr;
    CP_CUDA(cudaMalloc(&data, static_cast<std::size_t>(count) * sizeof(float)));
    memory_.push_back(static_cast<float*>(data));
    return memory_.back();
  }
  void upload(float* to, const std::vector<float>& from) override {
    CP_CUDA(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice, stream_));
    CP_CUDA(cudaStreamSynchronize(stream_));
  }
  std::vector<float> download(const float* from, std::int64_t count) override {
    std::vector<float> to(static_cast<std::size_t>(count));
    CP_CUDA(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
    CP_CUDA(cudaStreamSynchronize(stream_));
    return to;
  }

  cp::CallerStream stream() const override { return stream_; }
  void before_own_work(const cp::PlanRun&) override {}

  void gradient_of_loss(const float* out, const float* want, float* dout, float* errors,
                        std::int64_t count) override {
    launch_for_each(stream_, count, GradientOfLoss{out, want, dout, errors});
  }
  void descend(float* x, const float* gradient, float rate, std::int64_t count) override {
    launch_for_each(stream_, count, Descend{x, gradient, rate});
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<float*> memory_;
};

}  // namespace

std::unique_ptr<OwnKernels> own_kernels_of_gpu() { return std::make_unique<GpuKernels>(); }
