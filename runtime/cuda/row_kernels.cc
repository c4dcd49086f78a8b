#include "runtime/cuda/row_kernels.h"

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/target.h"

namespace cp::runtime {

PreparedKernel prepare(const RowKernel& kernel, const CudaMemory& memory) {
  if (is_shape_only(kernel))
    throw InvalidInput(str("the GPU has no kernel ", operation_words(Kernel(kernel)), "; it has ",
                           join(common_target().kernels, ", ")));
  switch (kernel.operation) {
    case RowOperation::rms_norm:
      return prepare_rms_norm(kernel, memory);
    case RowOperation::rms_norm_backward:
      return prepare_rms_norm_backward(kernel, memory);
    case RowOperation::norm_sums:
    case RowOperation::norm_sums_backward:
      return prepare_norm_sums(kernel, memory);
    case RowOperation::rotary:
    case RowOperation::rotary_backward:
      return prepare_rotary(kernel, memory);
    case RowOperation::gated_activation:
      return prepare_gated_activation(kernel, memory);
    case RowOperation::gated_activation_backward:
      return prepare_gated_activation_backward(kernel, memory);
    case RowOperation::output_gate:
      return prepare_output_gate(kernel, memory);
    case RowOperation::output_gate_backward:
      return prepare_output_gate_backward(kernel, memory);
    case RowOperation::add_bias:
      return prepare_add_bias(kernel, memory);
    case RowOperation::group_bias:
      return prepare_group_bias(kernel, memory);
    case RowOperation::group_bias_backward:
      return prepare_group_bias_backward(kernel, memory);
    case RowOperation::embed:
      return prepare_embed(kernel, memory);
    case RowOperation::embed_backward:
      return prepare_embed_backward(kernel, memory);
    case RowOperation::cross_entropy:
      return prepare_cross_entropy(kernel, memory);
    case RowOperation::cross_entropy_backward:
      return prepare_cross_entropy_backward(kernel, memory);
    case RowOperation::route:
      return prepare_route(kernel, memory);
    case RowOperation::route_backward:
      return prepare_route_backward(kernel, memory);
    case RowOperation::dispatch:
      return prepare_dispatch(kernel, memory);
    case RowOperation::combine:
      return prepare_combine(kernel, memory);
    case RowOperation::squared_norm:
      return prepare_squared_norm(kernel, memory);
    case RowOperation::optimizer:
      return prepare_optimizer(kernel, memory);
    case RowOperation::short_convolution:
      return prepare_short_convolution(kernel, memory);
    case RowOperation::short_convolution_backward:
      return prepare_short_convolution_backward(kernel, memory);
    case RowOperation::decay_and_beta:
      return prepare_decay_and_beta(kernel, memory);
    case RowOperation::decay_and_beta_backward:
      return prepare_decay_and_beta_backward(kernel, memory);
    case RowOperation::gated_norm:
      return prepare_gated_norm(kernel, memory);
    case RowOperation::gated_norm_backward:
      return prepare_gated_norm_backward(kernel, memory);
  }
  CP_INVARIANT(false, "row operation ", static_cast<int>(kernel.operation));
}

}  // namespace cp::runtime
