// What the program of prepared_attention.cc computes itself, on the host or on a GPU: memory, a stream, and
// two kernels. A program of yours is made for one of the two; this one is made for both, to show the
// difference.
//
//   own_kernels_host.cc   over Gloo: a kernel is a loop, and the program waits for a run before it reads what
//                         the run wrote
//   own_kernels.cu        over NCCL: a kernel is enqueued in a CUDA stream of the program's own, which orders
//                         it with the runs, and the host waits for nothing
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/prepared_plan.h"

class OwnKernels {
 public:
  virtual ~OwnKernels() = default;

  // Memory of `count` floats where the device's buffers are, which lives as long as this object.
  virtual float* allocate(std::int64_t count) = 0;
  // These copy, and return when that is done; download() waits for the stream first.
  virtual void upload(float* to, const std::vector<float>& from) = 0;
  virtual std::vector<float> download(const float* from, std::int64_t count) = 0;

  // The stream in which the kernels are enqueued, to be given to run(). Null on the host, which has none.
  virtual cp::CallerStream stream() const = 0;
  // To be called before a kernel that reads or writes what the run has: waits for the run on the host, and
  // does nothing on a GPU, whose stream does it.
  virtual void before_own_work(const cp::PlanRun& run) = 0;

  // The gradient of the loss 0.5 * sum (out - want)^2, which is out - want. It is written to `dout` and kept
  // in `errors`.
  virtual void gradient_of_loss(const float* out, const float* want, float* dout, float* errors,
                                std::int64_t count) = 0;
  // x -= rate * gradient
  virtual void descend(float* x, const float* gradient, float rate, std::int64_t count) = 0;
};

std::unique_ptr<OwnKernels> own_kernels_of_host();
std::unique_ptr<OwnKernels> own_kernels_of_gpu();  // of the current GPU; only in a build with CUDA and NCCL
