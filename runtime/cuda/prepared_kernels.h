// The kernels of the GPU one by one; StepKernels chooses among them. Semantics are those of the host kernels
// (shared/kernels): bits are equal where data moves, is cast, or is added up in integers or element by
// element.
//
// Each function takes a step's kernel, which is valid (validate_step), and returns what enqueues it; the
// kernel and the memory outlive that. What a launch needs on the device is uploaded before the function
// returns.
#pragma once

#include <cstdint>
#include <functional>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_memory.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Enqueues the kernel for one iteration of its Repeat.
using PreparedKernel = std::function<void(std::int64_t iteration, cudaStream_t stream)>;

PreparedKernel prepare(const Copy& kernel, const CudaMemory& memory);
PreparedKernel prepare(const Cast& kernel, const CudaMemory& memory);
PreparedKernel prepare(const Fill& kernel, const CudaMemory& memory);
PreparedKernel prepare(const Accumulate& kernel, const CudaMemory& memory);
PreparedKernel prepare(const Scale& kernel, const CudaMemory& memory);
PreparedKernel prepare(const AttentionMerge& kernel, const CudaMemory& memory);
PreparedKernel prepare(const AttentionDelta& kernel, const CudaMemory& memory);
// delta = rowsum(dout * out) to dense [batch, heads, seq] memory of the device's.
PreparedKernel prepare_delta(const View& out, const View& dout, float* delta, const CudaMemory& memory);
// Sums run in ascending k in one accumulator: equal bits to the host's.
PreparedKernel prepare(const MatMul& kernel, const CudaMemory& memory);
// Any dtype, dims and list of slices; equal bits at each launch. The engine does not matter: a backward
// without delta finds it.
PreparedKernel prepare(const AttentionForward& kernel, const CudaMemory& memory);
PreparedKernel prepare(const AttentionBackward& kernel, const CudaMemory& memory);

}  // namespace cp::runtime
