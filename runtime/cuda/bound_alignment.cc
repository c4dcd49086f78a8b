#include "runtime/cuda/bound_alignment.h"

#include <charconv>
#include <initializer_list>
#include <string>
#include <variant>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

void mark(std::vector<std::int64_t>& alignments, std::initializer_list<const View*> views) {
  for (const View* view : views) {
    if (view == nullptr) continue;
    const auto buffer = static_cast<std::size_t>(view->buffer);
    if (buffer < alignments.size()) alignments[buffer] = kFusedAlignment;  // an absent view has no buffer
  }
}

// The lse of several documents goes through the workspace (refuse_lse).
template <class Op>
const View* lse(const Op& op) {
  return op.slices.size() == 1 ? &op.lse : nullptr;
}

std::string hexadecimal(const void* address) {
  char digits[2 * sizeof(std::uintptr_t)];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, reinterpret_cast<std::uintptr_t>(address), 16);
  return str("0x", std::string(digits, end.ptr));
}

}  // namespace

std::vector<std::int64_t> bound_alignments(const Plan& plan) {
  std::vector<std::int64_t> alignments(plan.buffers.size(), 1);
  for (const StepRef& ref : steps_of(plan)) {
    const auto* const kernel = std::get_if<Kernel>(&ref.step->work);
    if (kernel == nullptr) continue;
    if (const auto* op = std::get_if<AttentionForward>(kernel);
        op != nullptr && op->engine == AttentionEngine::fused)
      mark(alignments, {&op->q, &op->k, &op->v, &op->out, lse(*op), &op->workspace});
    if (const auto* op = std::get_if<AttentionBackward>(kernel);
        op != nullptr && op->engine == AttentionEngine::fused)
      mark(alignments, {&op->q, &op->k, &op->v, &op->out, &op->dout, lse(*op), &op->dq, &op->dk, &op->dv,
                        &op->workspace});
  }
  return alignments;
}

void check_alignment(const Plan& plan, const std::vector<std::int64_t>& alignments, const Binding& binding) {
  const auto buffer = static_cast<std::size_t>(binding.buffer);
  const auto address = reinterpret_cast<std::uintptr_t>(binding.data);
  const auto alignment = static_cast<std::uintptr_t>(alignments[buffer]);
  if (address % alignment == 0) return;
  throw InvalidInput(
      str("buffer ", plan.buffers[buffer].name, " is bound to ", hexadecimal(binding.data), ", which is ",
          address % alignment, " bytes behind a multiple of ", alignment, ", but fused attention moves ",
          alignment,
          " bytes at once; bind an aligned address (cudaMalloc's are), copy the tensor to one, or "
          "plan with the exact engine"));
}

}  // namespace cp::runtime
