// LatentKeys expands latent rows to keys and values, and contracts their gradients to those of the rows and
// of the weight. Internal to shared/context_parallel.
//
// Rows [c, r] of any number and order are one matrix. A product with some heads' rows of kv_up gives, for
// each row, the heads' keys without r and their values, side by side ("up"): values are read from there, and
// keys are copied to where r comes behind each. Backward it is the same the other way round: gradients of
// values are written into such a matrix, those of keys without r are copied beside them, and two products
// contract it. What r gets is the sum over the heads, which is made in f32, half of the heads at a time.
//
// Absorbed rows are not expanded: they are the keys of all heads, and their first elements the values.
//
// Operands of products have the problem's dtype, so gradients of keys and values are rounded to it before
// they are contracted: once where heads travel, and of each block once where latent rows do.
#pragma once

#include <map>
#include <string>

#include "shared/context_parallel/attention_writer.h"

namespace cp::detail {

class LatentKeys {
 public:
  // Declares the weight, if there is one, as the plan's input, and backward, if keys have gradients, its
  // gradient as an output, f32, which begins as zeros.
  LatentKeys(AttentionWriter& writer, AttentionPass pass);

  // All heads that the problem has.
  Range all_heads() const;

  // Keys and values of some kv heads. Values are a part of longer rows where all kernels can read them there;
  // the tensors have the order of `rows`, but heads inside of rows.
  struct Pair {
    Tensor k, v;
  };
  Pair expand(const Tensor& rows, Range heads, const std::string& label);
  // The same with dense values, which can travel.
  Pair expand_densely(const Tensor& rows, Range heads, const std::string& label);

  // Temporaries for the gradients of such keys and values, in the problem's dtype.
  Pair gradients(const Tensor& rows, Range heads);
  // Contracts what was written to gradients() of these rows and heads: adds to the weight's gradient, and
  // writes that of the rows, or adds it to an f32 tensor. The heads' gradients are used up.
  void contract(const Pair& gradients, const Tensor& rows, Range heads, const Tensor& drows, bool accumulate,
                const std::string& label);

  // A backward step whose k is latent rows, of which the operand's dk are the gradients: the rows are
  // expanded for the step's heads, and their gradients are contracted.
  void attend_backward(const BackwardOperands& operands, const Masks& masks, Range heads,
                       const std::string& label);

 private:
  Pair expand_in_place(const Tensor& rows, Range heads, const std::string& label);
  static Pair as_they_are(const Tensor& rows, std::int64_t rank);
  Pair with_dense_values(const Pair& pair, const std::string& label);
  Tensor like(const Tensor& rows, BufferId buffer, Range heads, std::int64_t dim) const;
  Tensor values_in(const Tensor& rows, BufferId up, Range heads) const;
  // The heads' rows of the weight or of its gradient, as a matrix.
  View weight(BufferId buffer, Range heads) const;
  // A temporary for what is made of a block of rows. All blocks use it, one after the other.
  BufferId of_block(const char* name, const Tensor& tensor);

  AttentionWriter& writer_;
  const AttentionProblem& problem_;
  const std::int64_t rank_, rope_, nope_, up_;  // up_: elements of a row of "up" for each head
  BufferId kv_up_ = -1, dkv_up_ = -1;
  std::map<std::string, BufferId> of_blocks_;
};

}  // namespace cp::detail
