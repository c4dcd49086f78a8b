// FusedWriter writes attention steps for a target with fused kernels: the calls that cut_into_calls() makes,
// whose results a PartialSum puts together. Internal to shared/context_parallel; only AttentionWriter uses
// it.
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

  // As the functions of AttentionWriter, for masks with at least one pair. `sum` is that of out and lse,
  // which are not written before it is finished.
  void attend(const ForwardOperands& operands, const Masks& masks, const std::string& label);
  void attend(const ForwardOperands& operands, const Masks& masks, const std::string& label, PartialSum& sum);
  void attend_backward(const BackwardOperands& operands, const Masks& masks, const std::string& label);

 private:
  // Null for a gradient that nobody wants.
  struct Sums {
    PartialSum *dq, *dk, *dv;
  };

  // `of_q` and `of_kv` are the operands that the calls read.
  std::vector<AttentionCall> calls_of(const EntryMask& mask, bool backward, const std::vector<Tensor>& of_q,
                                      const std::vector<Tensor>& of_kv) const;
  // The shape of a fused call on some batch entries. Without a call, it lacks lengths and mask.
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
