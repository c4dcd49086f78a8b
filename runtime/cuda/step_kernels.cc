#include "runtime/cuda/step_kernels.h"

#include <variant>
#include <vector>

#include "runtime/cuda/prepared_kernels.h"
#include "shared/base/error.h"
#include "shared/base/types.h"
#include "shared/plan/target.h"

namespace cp::runtime {
namespace {

std::string named(const Step& step) {
  const std::string operation(operation_name(step.work));
  return step.label.empty() ? operation : str(operation, " \"", step.label, "\"");
}

// Chooses among the libraries' kernels and the project's own.
class Preparation {
 public:
  Preparation(std::span<const StreamId> streams, const CudaMemory& memory, LibraryKernels& libraries)
      : streams_(streams), memory_(memory), libraries_(libraries) {}

  PreparedKernel kernel_of(const Step& step) const {
    return std::visit(Overloaded{[&](const auto& op) { return prepare(op, memory_); },
                                 [&](const MatMul& op) {
                                   return product(op, streams_[static_cast<std::size_t>(step.stream)]);
                                 },
                                 [&](const AttentionForward& op) { return attention(op); },
                                 [&](const AttentionBackward& op) { return attention(op); },
                                 [&](const RowKernel& op) -> PreparedKernel {
                                   throw InvalidInput(str("the GPU has no kernel ", name(op.operation),
                                                          "; it has ", join(host_target().kernels, ", ")));
                                 }},
                      std::get<Kernel>(step.work));
  }

 private:
  PreparedKernel product(const MatMul& op, StreamId stream) const {
    if (PreparedKernel kernel = libraries_.products.prepare(op, stream, memory_)) return kernel;
    return prepare(op, memory_);
  }

  template <class Op>
  PreparedKernel attention(const Op& op) const {
    if (op.engine == AttentionEngine::exact) return prepare(op, memory_);
    try {
      if (PreparedKernel kernel = libraries_.fused.prepare(op, memory_)) return kernel;
    } catch (const InvalidInput& error) {
      throw InvalidInput(str(error.what(), "; use the exact engine, which supports every shape"));
    }
    return prepare(op, memory_);
  }

  const std::span<const StreamId> streams_;
  const CudaMemory& memory_;
  LibraryKernels& libraries_;
};

}  // namespace

struct StepKernels::Impl {
  std::vector<PreparedKernel> kernels;  // by StepId; none for a collective
};

StepKernels::StepKernels(const Plan& plan, std::span<const StreamId> streams, const CudaMemory& memory,
                         LibraryKernels& libraries)
    : impl_(std::make_unique<Impl>()) {
  const Preparation preparation(streams, memory, libraries);
  for (const StepRef& ref : steps_of(plan)) {
    PreparedKernel& kernel = impl_->kernels.emplace_back();
    if (is_collective(*ref.step)) continue;
    try {
      kernel = preparation.kernel_of(*ref.step);
    } catch (const InvalidInput& error) {
      throw InvalidInput(str("step ", ref.id, " (", named(*ref.step), "): ", error.what()));
    }
  }
}

StepKernels::~StepKernels() = default;

void StepKernels::launch(const StepRef& step, std::int64_t iteration, cudaStream_t stream) {
  const auto id = static_cast<std::size_t>(step.id);
  CP_INVARIANT(id < impl_->kernels.size() && impl_->kernels[id], named(*step.step),
               " is no kernel step of the prepared plan");
  try {
    impl_->kernels[id](iteration, stream);
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(named(*step.step), ": ", error.what()));
  }
}

}  // namespace cp::runtime
