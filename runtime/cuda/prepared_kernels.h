// The kernels of the GPU one by one; StepKernels chooses among them. They do the same as the host kernels
// (shared/kernels). The bits are equal, too, if data moves, is cast, or is added up in integers or element by
// element.
//
// Each function takes the kernel of a step, which must be valid (validate_step), and returns a function that
// enqueues it. The kernel and the memory must outlive that function. Tables that a launch needs on the device
// are uploaded before prepare() returns.
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
PreparedKernel prepare(const AttentionSinkGradient& kernel, const CudaMemory& memory);
// Computes delta = rowsum(dout * out) into dense [batch, heads, seq] memory of the device.
PreparedKernel prepare_delta(const View& out, const View& dout, float* delta, const CudaMemory& memory);
// Sums run in ascending k in one accumulator, so the bits are those of the host.
PreparedKernel prepare(const MatMul& kernel, const CudaMemory& memory);
// These take any dtype, dims and list of slices, and give equal bits at each launch. They ignore the step's
// engine. If a backward step has no delta, the kernel computes it.
PreparedKernel prepare(const AttentionForward& kernel, const CudaMemory& memory);
PreparedKernel prepare(const AttentionBackward& kernel, const CudaMemory& memory);
// These give equal bits at each launch, too, and a RecurrenceJoin those of the host. The state of a head lies
// in the registers of blocks, each of which has some of its columns, so they throw InvalidInput where one
// column has more elements than these hold: keys of more than 4096, or of more than 1024 backward.
PreparedKernel prepare(const RecurrenceForward& kernel, const CudaMemory& memory);
PreparedKernel prepare(const RecurrenceSummary& kernel, const CudaMemory& memory);
PreparedKernel prepare(const RecurrenceSummaryGradient& kernel, const CudaMemory& memory);
PreparedKernel prepare(const RecurrenceJoin& kernel, const CudaMemory& memory);
PreparedKernel prepare(const RecurrenceBackward& kernel, const CudaMemory& memory);

}  // namespace cp::runtime
