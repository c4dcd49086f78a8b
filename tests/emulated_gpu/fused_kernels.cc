// FusedKernels of the emulated GPU: what cuDNN takes and refuses (shared/plan/fused_attention.h), computed by
// the host kernels.
#include "runtime/cuda/fused_kernels.h"

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/target.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_stream.h"

namespace cp::runtime {
namespace {

using Views = std::vector<View*>;
Views views(AttentionForward& op) { return {&op.q, &op.k, &op.v, &op.out, &op.lse}; }
Views views(AttentionBackward& op) {
  return {&op.q, &op.k, &op.v, &op.out, &op.dout, &op.lse, &op.dq, &op.dk, &op.dv};
}
constexpr std::size_t kFirstGradient = 6;
bool is_lse(const Views& all, std::size_t index) { return index == (all.size() == 5 ? 4U : 5U); }

const FusedAttention& library() {
  return *gpu_target(str("sm", emulated::compute_capability())).fused_attention;
}

template <class Op>
void check(Op op, const CudaMemory& memory) {
  const Shape &q = op.q.shape, &v = op.v.shape;
  auto shape = fused_form(op.slices, q[1], v[1]);
  if (!shape)
    throw InvalidInput(str("its ", op.slices.size(), " mask slices do not have a form that cuDNN supports"));
  shape->backward = std::is_same_v<Op, AttentionBackward>;
  shape->dtype = memory.dtype(op.q);
  shape->batch = q[0];
  shape->q_heads = q[2];
  shape->kv_heads = v[2];
  shape->head_dim = q[3];
  shape->v_head_dim = v[3];
  if (const auto why = refuse(library(), *shape)) throw InvalidInput(str(to_text(*shape), ": ", *why));
  const Views operands = views(op);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (is_lse(operands, i)) continue;
    if (const auto why = refuse_operand(*shape, *operands[i], i >= kFirstGradient))
      throw InvalidInput(str("operand ", i, " has ", *why));
  }
  if (const auto why = refuse_lse(*shape, op.lse)) throw InvalidInput(*why);
  const std::int64_t needed = workspace_bytes(library(), *shape);
  const std::int64_t given = op.workspace.numel() * size_bytes(memory.dtype(op.workspace));
  if (needed > given)
    throw InvalidInput(
        str(to_text(*shape), ": cuDNN needs ", needed, " bytes of workspace, but the plan has ", given));
}

// The same call on a plan of its own, whose buffers are the operands, where they lie.
template <class Op>
struct Call {
  Op op;
  Plan plan;
  Bindings bindings;
  std::byte* workspace = nullptr;
  std::size_t workspace_size = 0;
};

template <class Op>
Call<Op> call_of(const Op& step, const CudaMemory& memory, std::int64_t iteration) {
  Call<Op> call;
  call.op = step;
  for (View* view : views(call.op)) {
    Buffer buffer;
    buffer.kind = BufferKind::inout;
    buffer.dtype = memory.dtype(*view);
    buffer.numel = 1;
    for (std::size_t i = 0; i < view->shape.size(); ++i)
      buffer.numel += (view->shape[i] - 1) * view->strides[i];
    const auto id = static_cast<BufferId>(call.plan.buffers.size());
    call.bindings.push_back({id, memory.at(*view, iteration), buffer.bytes()});
    call.plan.buffers.push_back(buffer);
    *view = View{id, 0, view->shape, view->strides, {}};
  }
  call.workspace = memory.at(step.workspace, iteration);
  call.workspace_size =
      static_cast<std::size_t>(step.workspace.numel() * size_bytes(memory.dtype(step.workspace)));
  call.op.workspace = {};
  return call;
}

template <class Op>
void enqueue(const Op& step, const CudaMemory& memory, std::int64_t iteration, cudaStream_t stream) {
  const emulated::Inside inside;
  emulated::enqueue(stream, [call = call_of(step, memory, iteration)] {
    std::memset(call.workspace, 0xFB, call.workspace_size);  // its contents mean nothing before and after
    const HostMemory host(call.plan, call.bindings);
    run_kernel(Kernel{call.op}, host, 0);
  });
}

}  // namespace

struct FusedKernels::Impl {};

FusedKernels::FusedKernels() = default;
FusedKernels::~FusedKernels() = default;

template <class Op>
PreparedKernel FusedKernels::prepare_step(const Op& step, const CudaMemory& memory) {
  check(step, memory);
  return [&step, &memory](std::int64_t iteration, cudaStream_t stream) {
    enqueue(step, memory, iteration, stream);
  };
}
PreparedKernel FusedKernels::prepare(const AttentionForward& step, const CudaMemory& memory) {
  return prepare_step(step, memory);
}
PreparedKernel FusedKernels::prepare(const AttentionBackward& step, const CudaMemory& memory) {
  return prepare_step(step, memory);
}

std::map<std::string, std::string> FusedKernels::library_versions() { return {{"cudnn", "emulated"}}; }

}  // namespace cp::runtime
