#include "shared/kernels/row_kernels.h"

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {

void run(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  if (is_shape_only(kernel))
    throw InvalidInput(str("the host has no kernel ", operation_words(Kernel(kernel)), "; it has ",
                           join(host_target().kernels, ", ")));
  switch (kernel.operation) {
    case RowOperation::rms_norm:
      return rms_norm(kernel, memory, iteration);
    case RowOperation::rms_norm_backward:
      return rms_norm_backward(kernel, memory, iteration);
    case RowOperation::norm_sums:
    case RowOperation::norm_sums_backward:
      return norm_sums(kernel, memory, iteration);
    case RowOperation::rotary:
    case RowOperation::rotary_backward:
      return rotary(kernel, memory, iteration);
    case RowOperation::gated_activation:
      return gated_activation(kernel, memory, iteration);
    case RowOperation::gated_activation_backward:
      return gated_activation_backward(kernel, memory, iteration);
    case RowOperation::output_gate:
      return output_gate(kernel, memory, iteration);
    case RowOperation::output_gate_backward:
      return output_gate_backward(kernel, memory, iteration);
    case RowOperation::add_bias:
      return add_bias(kernel, memory, iteration);
    case RowOperation::group_bias:
      return group_bias(kernel, memory, iteration);
    case RowOperation::group_bias_backward:
      return group_bias_backward(kernel, memory, iteration);
    case RowOperation::embed:
      return embed(kernel, memory, iteration);
    case RowOperation::embed_backward:
      return embed_backward(kernel, memory, iteration);
    case RowOperation::cross_entropy:
      return cross_entropy(kernel, memory, iteration);
    case RowOperation::cross_entropy_backward:
      return cross_entropy_backward(kernel, memory, iteration);
    case RowOperation::route:
      return route(kernel, memory, iteration);
    case RowOperation::route_backward:
      return route_backward(kernel, memory, iteration);
    case RowOperation::dispatch:
      return dispatch(kernel, memory, iteration);
    case RowOperation::combine:
      return combine(kernel, memory, iteration);
    case RowOperation::squared_norm:
      return squared_norm(kernel, memory, iteration);
    case RowOperation::optimizer:
      return optimizer(kernel, memory, iteration);
    case RowOperation::short_convolution:
      return short_convolution(kernel, memory, iteration);
    case RowOperation::short_convolution_backward:
      return short_convolution_backward(kernel, memory, iteration);
    case RowOperation::decay_and_beta:
      return decay_and_beta(kernel, memory, iteration);
    case RowOperation::decay_and_beta_backward:
      return decay_and_beta_backward(kernel, memory, iteration);
    case RowOperation::gated_norm:
      return gated_norm(kernel, memory, iteration);
    case RowOperation::gated_norm_backward:
      return gated_norm_backward(kernel, memory, iteration);
  }
  CP_INVARIANT(false, "row operation ", static_cast<int>(kernel.operation));
}

}  // namespace cp
