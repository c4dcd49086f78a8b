// The pass of layers with a gated short convolution. No function is behind the convolution, and documents
// begin it anew.
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/proof/reference/model_pass.h"
#include "sim/proof/reference/operations.h"

namespace cp::sim {

Variable ModelPass::mix_by_convolution(const Layer& at, Variable rows) {
  const std::string own = at.prefix + "conv.";
  const Variable projected = note(at.label + "projected", linear_of(rows, own + "in_proj"));
  const auto part = [&](std::int64_t number) {
    std::vector<std::int64_t> columns;
    for (std::int64_t j = 0; j < model_.hidden; ++j) columns.push_back(number * model_.hidden + j);
    return take_columns(projected, std::move(columns));
  };
  const Variable b = part(0), c = part(1), x = part(2);
  Variable sums = convolve(multiply(b, x), parameter(own + "conv.weight"), begins_);
  if (model_.convolution->bias) sums = add_to_rows(sums, parameter(own + "conv.bias"));
  return linear_of(note(at.label + "convolved", multiply(c, sums)), own + "out_proj");
}

}  // namespace cp::sim
