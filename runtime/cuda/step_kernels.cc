#include "runtime/cuda/step_kernels.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/host_kernels_on_streams.h"
#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/row_kernels.h"
#include "shared/base/error.h"
#include "shared/base/types.h"
#include "shared/plan/host_place.h"

namespace cp::runtime {
namespace {

std::string named(const Step& step) {
  const std::string operation(operation_name(step.work));
  return step.label.empty() ? operation : str(operation, " \"", step.label, "\"");
}

std::string described(const StepRef& ref) { return str("step ", ref.id, " (", named(*ref.step), ")"); }

// The step, if it is a fused one.
std::optional<FusedStep> fused_step(const StepRef& ref, std::span<const StreamId> streams) {
  const auto& kernel = std::get<Kernel>(ref.step->work);
  const StreamId stream = streams[static_cast<std::size_t>(ref.step->stream)];
  const auto of = [&](const auto* op) -> std::optional<FusedStep> {
    if (op == nullptr || op->engine != AttentionEngine::fused) return {};
    return FusedStep{described(ref), stream, op};
  };
  if (auto forward = of(std::get_if<AttentionForward>(&kernel))) return forward;
  return of(std::get_if<AttentionBackward>(&kernel));
}

// Chooses among the libraries' kernels, the project's own and the host's, for steps that are not fused.
class Preparation {
 public:
  Preparation(const Plan& plan, std::span<const StreamId> streams, const CudaMemory& memory,
              LibraryKernels& libraries, HostKernelsOnStreams& of_host)
      : plan_(plan), streams_(streams), memory_(memory), libraries_(libraries), of_host_(of_host) {}

  PreparedKernel kernel_of(const StepRef& ref) const {
    const Step& step = *ref.step;
    const auto& kernel = std::get<Kernel>(step.work);
    const KernelPlace place = place_of(kernel, plan_);
    if (place == KernelPlace::host) return of_host_.prepare(kernel, ref.count);
    if (place == KernelPlace::host_copy) {
      const auto& copy = std::get<Copy>(kernel);
      if (is_contiguous(copy.in) && is_contiguous(copy.out)) return copy_engine(copy);
    }
    return std::visit(Overloaded{[&](const auto& op) { return prepare(op, memory_); },
                                 [&](const MatMul& op) {
                                   return product(op, streams_[static_cast<std::size_t>(step.stream)]);
                                 }},
                      kernel);
  }

 private:
  // Between the GPU and the host's memory, beside kernels, of which it takes no multiprocessor.
  PreparedKernel copy_engine(const Copy& op) const {
    const auto bytes = static_cast<std::size_t>(op.in.numel() * size_bytes(memory_.dtype(op.in)));
    return [&op, &memory = memory_, bytes](std::int64_t iteration, cudaStream_t stream) {
      CP_CUDA(cudaMemcpyAsync(memory.at(op.out, iteration), memory.at(op.in, iteration), bytes,
                              cudaMemcpyDefault, stream));
    };
  }

  PreparedKernel product(const MatMul& op, StreamId stream) const {
    if (op.out.shape.size() == 3) return products(op, stream);
    if (PreparedKernel kernel = libraries_.products.prepare(op, stream, memory_)) return kernel;
    return prepare(op, memory_);
  }

  // Each by itself. Kernels keep references to the products that they are of.
  PreparedKernel products(const MatMul& op, StreamId stream) const {
    struct Kept {
      std::vector<MatMul> products;
      std::vector<PreparedKernel> kernels;
    };
    const auto kept = std::make_shared<Kept>();
    for (std::int64_t i = 0; i < num_products(op); ++i) kept->products.push_back(product_of(op, i));
    for (const MatMul& one : kept->products) kept->kernels.push_back(product(one, stream));
    return [kept](std::int64_t iteration, cudaStream_t on) {
      for (const PreparedKernel& kernel : kept->kernels) kernel(iteration, on);
    };
  }

  const Plan& plan_;
  const std::span<const StreamId> streams_;
  const CudaMemory& memory_;
  LibraryKernels& libraries_;
  HostKernelsOnStreams& of_host_;
};

}  // namespace

struct StepKernels::Impl {
  HostKernelsOnStreams of_host;
  std::vector<PreparedKernel> kernels;  // by StepId; none for a collective
};

StepKernels::StepKernels(const Plan& plan, std::span<const StreamId> streams, const CudaMemory& memory,
                         LibraryKernels& libraries)
    : impl_(new Impl{.of_host{plan, memory}, .kernels = {}}) {
  const Preparation preparation(plan, streams, memory, libraries, impl_->of_host);
  const std::vector<StepRef> steps = steps_of(plan);
  impl_->kernels.resize(steps.size());
  std::vector<FusedStep> fused;
  std::vector<std::size_t> ids;  // of these
  for (std::size_t id = 0; id < steps.size(); ++id) {
    const Step& step = *steps[id].step;
    if (is_collective(step)) continue;
    if (auto as_fused = fused_step(steps[id], streams)) {
      fused.push_back(*std::move(as_fused));
      ids.push_back(id);
      continue;
    }
    try {
      impl_->kernels[id] = preparation.kernel_of(steps[id]);
    } catch (const InvalidInput& error) {
      throw InvalidInput(str(described(steps[id]), ": ", error.what()));
    }
  }
  FusedPlan prepared = libraries.fused.prepare(fused, memory);
  for (std::size_t i = 0; i < ids.size(); ++i)
    impl_->kernels[ids[i]] =
        prepared.kernels.empty() ? preparation.kernel_of(steps[ids[i]]) : std::move(prepared.kernels[i]);
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
