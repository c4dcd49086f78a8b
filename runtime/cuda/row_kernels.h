// The GPU's kernels of RowKernels' operations; prepare() chooses among them. row_operations.h is their
// definition. Arguments and results are as in prepared_kernels.h.
//
// Bits are those of the host's kernels where no sum has another order and no function of the mathematical
// library is computed: where rows move, are rotated, embedded, combined, biased or updated by SGD, and in the
// gradients of tables of tokens, whose terms are added up in the order of tokens. Everything gives equal bits
// at each launch.
#pragma once

#include "runtime/cuda/prepared_kernels.h"

namespace cp::runtime {

// Throws InvalidInput for a kernel that has shapes only.
PreparedKernel prepare(const RowKernel& kernel, const CudaMemory& memory);

PreparedKernel prepare_rms_norm(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_rms_norm_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_norm_sums(const RowKernel& kernel, const CudaMemory& memory);  // and backward
PreparedKernel prepare_rotary(const RowKernel& kernel, const CudaMemory& memory);     // and backward
PreparedKernel prepare_gated_activation(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_gated_activation_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_output_gate(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_output_gate_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_add_bias(const RowKernel& kernel, const CudaMemory& memory);  // and backward
PreparedKernel prepare_group_bias(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_group_bias_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_embed(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_embed_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_cross_entropy(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_cross_entropy_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_route(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_route_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_dispatch(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_combine(const RowKernel& kernel, const CudaMemory& memory);
// Throw InvalidInput where a block has not the registers: more than 8 taps, or normalized heads of more than
// 256 columns.
PreparedKernel prepare_short_convolution(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_short_convolution_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_decay_and_beta(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_decay_and_beta_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_gated_norm(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_gated_norm_backward(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_squared_norm(const RowKernel& kernel, const CudaMemory& memory);
PreparedKernel prepare_optimizer(const RowKernel& kernel, const CudaMemory& memory);

}  // namespace cp::runtime
