// FusedWriter: attention steps for a target with fused kernels: calls as cut_into_calls() has them, whose
// results a PartialSum brings together. Internal to shared/context_parallel; AttentionWriter asks it.
#pragma once

#include <string>
#include <vector>

#include "shared/context_parallel/attention_calls.h"
#include "shared/context_parallel/attention_writer.h"
#include "shared/context_parallel/partial_sum.h"

namespace cp::detail {

class FusedWriter {
 public:
  explicit FusedWriter(AttentionWriter& writer) : writer_(writer) {}

  // As AttentionWriter's, of masks with pairs; `sum`: of out and lse, which are not written before it is
  // finished.
  void attend(const ForwardOperands& operands, const Masks& masks, const std::string& label);
  void attend(const ForwardOperands& operands, const Masks& masks, const std::string& label, PartialSum& sum);
  void attend_backward(const BackwardOperands& operands, const Masks& masks, const std::string& label);

 private:
  // Of gradients that nobody wants: null.
  struct Sums {
    PartialSum *dq, *dk, *dv;
  };

  // `of_q`, `of_kv`: the operands that calls read.
  std::vector<AttentionCall> calls_of(const EntryMask& mask, bool backward, const std::vector<Tensor>& of_q,
                                      const std::vector<Tensor>& of_kv) const;
  // Of a fused call on some batch entries; without its lengths and mask where none is given.
  FusedShape shape_of(const HeadGroup& heads, Range batches, bool backward,
                      const AttentionCall* call = nullptr) const;
  View workspace(const AttentionCall& call, const FusedShape& shape);
  void attend_heads(const ForwardOperands& operands, const AttentionCall& call, const HeadGroup& heads,
                    Range batches, PartialSum& sum, const std::string& label);
  void backward_heads(const BackwardOperands& operands, const AttentionCall& call, const HeadGroup& heads,
                      Range batches, const Sums& sums, const std::string& label);

  AttentionWriter& writer_;
};

}  // namespace cp::detail
