// Outputs and gradients that are put together from partial results. Internal to shared/context_parallel.
#pragma once

#include <memory>
#include <string>

#include "shared/context_parallel/attention_writer.h"

namespace cp::detail {

// The output of a rank's queries, put together from partial results of disjoint sets of keys, and at last
// from the sinks of its heads, if there are any. Exact targets merge them in the order in which they are
// added.
class PartialOutputs {
 public:
  // `parts` says how many will be added.
  PartialOutputs(AttentionWriter& writer, const Tensor& out, const RowStatistic& lse, int parts);
  ~PartialOutputs();

  struct Operands {
    Tensor q, k, v;
  };
  // Computes attention for the pairs of the masks, and adds the result. There must be at least one pair.
  void add(const Operands& operands, const Masks& masks, const std::string& label);
  // Adds a partial result that another rank computed. Its temporaries must stay until finish().
  void add(const Tensor& out, const RowStatistic& lse, const std::string& label);
  // Writes the output in its dtype. If nothing was added, out is 0 and lse -inf.
  void finish();

 private:
  AttentionWriter& writer_;
  Tensor out_, sum_;
  RowStatistic lse_;
  bool empty_ = true;
  std::unique_ptr<PartialSum> parts_;  // of a fused target
};

// A gradient that is the sum of partial ones. If the gradient is absent, nobody wants it: next() then gives
// no place, and add() does nothing.
class PartialGradient {
 public:
  enum class Of : std::uint8_t { queries, keys };
  // `parts` says how many parts there are for a row.
  PartialGradient(AttentionWriter& writer, const std::string& name, const Tensor& gradient, Of of, int parts);
  ~PartialGradient();
  PartialGradient(PartialGradient&&) noexcept;

  // Where one more backward step writes its part.
  Gradient next();
  // Adds a partial gradient that came from another rank. Its temporary must stay until settle() or finish().
  void add(const Tensor& part, const std::string& label);
  void settle(const std::string& label);
  // Writes the gradient in its dtype; 0 if nothing was added.
  void finish(const std::string& label);

 private:
  AttentionWriter* writer_;
  Tensor gradient_, sum_;
  bool begun_ = false;
  std::unique_ptr<PartialSum> parts_;  // of a fused target
};

}  // namespace cp::detail
