// FusedWriter: attention steps for a target with fused kernels: calls as cut_into_calls() has them, and what brings their results
// together. Internal to shared/context_parallel; PlanWriter asks it.
//
// A fused call writes its rows in the problem's dtype, and lse dense. Where nothing is there yet and the dtypes agree it writes straight
// to the result, else to a temporary that is converted, merged or added. Sums of several calls of one step are in f32.
#pragma once

#include <string>
#include <vector>

#include "shared/context_parallel/attention_calls.h"
#include "shared/context_parallel/plan_writer.h"

namespace cp::detail {

class FusedWriter {
 public:
  explicit FusedWriter(PlanWriter& writer) : writer_(writer) {}

  // As PlanWriter's, of slices that are not empty. `merge`: into what out and lse hold.
  void attend(const ForwardOperands& operands, const std::vector<MaskSlice>& slices, const std::string& label,
              bool merge);
  void attend_backward(const BackwardOperands& operands, const std::vector<MaskSlice>& slices,
                       const std::string& label);

 private:
  class Written;
  struct Landing;

  // `of_q`, `of_kv`: the operands that calls read.
  std::vector<AttentionCall> calls_of(const std::vector<MaskSlice>& slices, bool backward,
                                      const std::vector<Tensor>& of_q,
                                      const std::vector<Tensor>& of_kv) const;
  // Of a fused call; without its lengths and mask where none is given.
  FusedShape shape_of(const HeadGroup& heads, bool backward, const AttentionCall* call = nullptr) const;
  View workspace(const AttentionCall& call, const FusedShape& shape);
  // Temporaries for some rows and heads of a result.
  View part_of(const std::string& name, DType dtype, const Tensor& result, Range rows, Range heads);
  View part_of(const std::string& name, Range rows, Range heads);  // of lse

  void attend_heads(const ForwardOperands& operands, const AttentionCall& call, const HeadGroup& heads,
                    Written& written, const std::string& label);
  void backward_heads(const BackwardOperands& operands, const AttentionCall& call, const HeadGroup& heads,
                      Written& queries, Written& keys, const std::string& label);
  // Where a call's gradients go: to the result, or beside it.
  Landing land(const AttentionCall& call, const FusedShape& shape, const Tensor& result, Range rows,
               Range heads, const Written& written, const std::string& name, bool arrives = false);
  void bring_in(const Landing& landing, const std::string& label);

  PlanWriter& writer_;
};

}  // namespace cp::detail
