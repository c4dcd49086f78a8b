#include "runtime/cuda/step_kernels.h"

#include <unordered_map>
#include <variant>

#include "runtime/cuda/prepared_kernels.h"
#if defined(CP_HAVE_CUBLAS)
#include "runtime/cuda/cublas_matmul.h"
#endif
#include "shared/base/error.h"
#include "shared/base/types.h"
#include "shared/plan/target.h"

namespace cp::runtime {
namespace {

// Without the library, the project's own kernels run fused steps too.
#if defined(CP_HAVE_CUDNN)
constexpr bool kHasFused = true;
#else
constexpr bool kHasFused = false;
#endif

std::string named(const Step& step) {
  const std::string operation(operation_name(step.work));
  return step.label.empty() ? operation : str(operation, " \"", step.label, "\"");
}

}  // namespace

struct StepKernels::Impl {
  Impl(const CudaMemory& plan_memory, FusedKernels& fused_kernels)
      : memory(plan_memory), fused(fused_kernels) {}

  const CudaMemory& memory;
  FusedKernels& fused;
#if defined(CP_HAVE_CUBLAS)
  CublasMatMul cublas;
#endif
  std::unordered_map<const Step*, PreparedKernel> kernels;

  PreparedKernel prepare_step(const Step& step) {
    return std::visit(Overloaded{[&](const auto& op) { return prepare(op, memory); },
                                 [&](const MatMul& op) { return prepare_matmul(op); },
                                 [&](const AttentionForward& op) { return prepare_attention(op); },
                                 [&](const AttentionBackward& op) { return prepare_attention(op); },
                                 [&](const RowKernel& op) -> PreparedKernel {
                                   throw InvalidInput(str("step ", named(step), ": the GPU has no kernel ",
                                                          name(op.operation), "; there is ",
                                                          join(host_target().kernels, ", ")));
                                 }},
                      std::get<Kernel>(step.work));
  }

  PreparedKernel prepare_matmul(const MatMul& op) {
#if defined(CP_HAVE_CUBLAS)
    if (PreparedKernel kernel = cublas.prepare(op, memory)) return kernel;
#endif
    return prepare(op, memory);
  }

  template <class Op>
  PreparedKernel prepare_attention(const Op& op) {
    if (!kHasFused || op.engine != AttentionEngine::fused) return prepare(op, memory);
    return [this, &op](std::int64_t iteration, cudaStream_t stream) {
      fused.launch(op, memory, iteration, stream);
    };
  }
};

StepKernels::StepKernels(const Plan& plan, const CudaMemory& memory, FusedKernels& fused)
    : impl_(std::make_unique<Impl>(memory, fused)) {
  if (kHasFused) fused.prepare(plan);
  for (const StepRef& ref : steps_of(plan)) {
    if (!is_collective(*ref.step)) impl_->kernels.emplace(ref.step, impl_->prepare_step(*ref.step));
  }
}

StepKernels::~StepKernels() = default;

void StepKernels::launch(const Step& step, std::int64_t iteration, cudaStream_t stream) {
  const auto kernel = impl_->kernels.find(&step);
  CP_INVARIANT(kernel != impl_->kernels.end(), named(step), " is no kernel step of the prepared plan");
  kernel->second(iteration, stream);
}

}  // namespace cp::runtime
