// What products do to tags where keys and values are made of latent rows (context_parallel/problem.h). Three
// kinds of product are known: latent rows by the weight, which gives keys and values; gradients of keys and
// values by the weight, which gives those of latent rows; and gradients of keys and values by latent rows,
// which gives the weight's. Operands that do not belong together become findings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/proof/ledger/shadow_run.h"

namespace cp::sim {

// One object runs all products of a shadow run, one after the other.
class LatentShadow {
 public:
  // Both must outlive this.
  LatentShadow(const ShadowWorld& world, const StepNames& names) : world_(world), names_(names) {}

  // Executes a product of a plan in an iteration; `step` is its number in `names`.
  void run(const MatMul& op, std::size_t plan, std::int64_t iteration, std::int32_t step);

 private:
  // A row of the weight: a head's, and which of its rows.
  struct UpRow {
    std::int64_t head = -1, row = 0;
    bool operator==(const UpRow&) const = default;
  };
  // Elements of a granule follow one another, and only the first one is looked at.
  std::int64_t granule(const View& matrix) const { return world_.memory.granule(plan_, matrix.buffer); }
  void expand(const MatMul& op);
  void contract(const MatMul& op);
  void contract_weight(const MatMul& op);

  Tag at(const View& matrix, std::int64_t row, std::int64_t column) const;
  void put(const View& matrix, std::int64_t row, std::int64_t column, Tag tag, bool accumulate);
  // The rows of the weight that the columns of a [columns, rank] view are, or those of a gradient.
  std::vector<UpRow> weight_rows(const View& matrix, bool transposed);
  // Which latent row begins at this row of the view, whose columns are the row's first `rank`.
  Element latent_row(const View& matrix, std::int64_t row);
  void require_runs(const std::vector<UpRow>& ups, std::int64_t granule);
  // The element of k, v, dk or dv that the row of the weight makes of a latent row.
  std::uint64_t made_of(const UpRow& up, const Element& row, bool gradient) const;

  template <class... Parts>
  void find(const Parts&... parts);

  const ShadowWorld& world_;
  const StepNames& names_;
  std::size_t plan_ = 0;
  std::int64_t iteration_ = 0;
  std::int32_t step_ = 0;
  bool complained_ = false;  // about this step
};

}  // namespace cp::sim
