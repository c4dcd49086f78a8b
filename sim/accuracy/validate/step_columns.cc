#include "sim/accuracy/validate/step_columns.h"

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::sim {

LinearPrecision products_of(const CsvRow& row) {
  const std::string& products = row.text("products");
  if (products == "fp8") return LinearPrecision::fp8;
  if (products == "b16") return LinearPrecision::b16;
  throw InvalidInput(str(row.where(), ": unknown products '", products, "'; use b16 or fp8"));
}

// torchtitan's "op" keeps every other product of a layer and its attention; as many products are computed
// again in every other layer.
Recompute recompute_of(const CsvRow& row) {
  return row.text("recompute") == "op" ? Recompute{Recompute::Kind::every, 2}
                                       : parse_recompute(row.text("recompute"));
}

}  // namespace cp::sim
