// What the operations of RowKernels ask of their views and of their rules; row_operations.h says what each of
// them means. Used by validate_step(), and by kernels for what views mean.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/plan/view_rules.h"

namespace cp {

// What a kernel gives: results with rows first, then the gradients of weights, which have one dimension.
// `adds`: to what is there.
struct RowResult {
  const View* view = nullptr;
  bool adds = false;
};
std::vector<RowResult> results_of(const RowKernel& kernel);

// The table in which the kernel looks up one row for each of its own, and nothing else: that of tokens, or of
// sines and cosines. Of it, and of its gradient, a kernel reads and writes as many rows as it looks up.
struct LookUp {
  const View* table = nullptr;
  std::int64_t rows = 0;
};
std::optional<LookUp> look_up_of(const RowKernel& kernel);

// What a convolution reads, and its backward form; null: there is none. Outputs are q, k and v, or y alone,
// or their gradients. The kernel must read x and weights at least.
struct ConvolutionOperands {
  const View *x = nullptr, *weights = nullptr, *bias = nullptr, *halo = nullptr;
  std::vector<const View*> outputs;
};
ConvolutionOperands convolution_operands(const RowKernel& kernel);

// Throws InvalidInput, as validate_step() does.
class RowRules : ViewRules {
 public:
  using ViewRules::ViewRules;
  void check(const RowKernel& op) const;

 private:
  // The rule of the type that the operation needs.
  template <class Rule>
  const Rule& rule_of(const RowKernel& op) const;
  void counts(const RowKernel& op, std::size_t reads, std::size_t results) const;

  void matrix(const View& view, std::int64_t rows, std::int64_t columns, std::string_view role) const;
  void statistic(const View& view, std::int64_t rows, std::int64_t columns, std::string_view role) const;
  void vector(const View& view, std::int64_t numel, std::string_view role) const;
  void integers(const View& view, const Shape& shape, std::string_view role) const;
  void two_dims(const View& view, std::string_view role) const;

  void check_norm(const RowKernel& op) const;
  void check_norm_backward(const RowKernel& op) const;
  void check_norm_sums(const RowKernel& op) const;
  void check_norm_columns(const NormRule& rule, const View& x) const;
  void check_norm_weights(const NormRule& rule, const RowKernel& op) const;
  void check_rotary(const RowKernel& op) const;
  void check_activation(const RowKernel& op) const;
  void check_embedding(const RowKernel& op) const;
  void check_loss(const RowKernel& op) const;
  void check_vocabulary(const VocabularyRule& rule, std::int64_t rows) const;
  void check_router(const RowKernel& op) const;
  void check_slots(const RowKernel& op) const;
  void check_bias(const RowKernel& op) const;
  void check_group_bias(const RowKernel& op) const;
  void check_gate(const RowKernel& op) const;
  void check_convolution(const RowKernel& op) const;
  void check_runs(const ConvolutionRule& rule, std::int64_t rows, std::int64_t halo_rows) const;
  void check_decay(const RowKernel& op) const;
  void check_gated_norm(const RowKernel& op) const;
  void check_squared_norm(const RowKernel& op) const;
  void check_optimizer(const RowKernel& op) const;
};

}  // namespace cp
