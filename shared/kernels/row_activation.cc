// What MLPs and gates compute element by element, and biases.
#include <vector>

#include "shared/kernels/activation.h"
#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"
#include "shared/plan/row_rules.h"

namespace cp {

void gated_activation(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<ActivationRule>(kernel.rule);
  const RowView up(kernel.reads[0], memory, iteration), y(kernel.writes[0], memory, iteration);
  const bool weighted = kernel.reads.size() > 1;
  float* const weights = weighted ? statistic(kernel.reads[1], memory, iteration) : nullptr;
  const std::int64_t columns = y.columns();
  std::vector<float> in(idx(up.columns())), out(idx(columns));
  for (std::int64_t row = 0; row < y.rows(); ++row) {
    up.load(row, in.data());
    const float weight = weighted ? at(weights, kernel.reads[1], row) : 1;
    for (std::int64_t i = 0; i < columns; ++i)
      out[idx(i)] =
          weight * activate(rule.function, in[idx(i)]).value * (rule.gated ? in[idx(columns + i)] : 1);
    y.store(row, out.data());
  }
}

void gated_activation_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<ActivationRule>(kernel.rule);
  const RowView up(kernel.reads[0], memory, iteration), dy(kernel.reads.back(), memory, iteration),
      d_up(kernel.writes[0], memory, iteration);
  const bool weighted = kernel.reads.size() > 2;
  float* const weights = weighted ? statistic(kernel.reads[1], memory, iteration) : nullptr;
  float* const d_weights = weighted ? statistic(kernel.writes[1], memory, iteration) : nullptr;
  const std::int64_t columns = dy.columns();
  std::vector<float> in(idx(up.columns())), out(in.size()), d(idx(columns));
  for (std::int64_t row = 0; row < dy.rows(); ++row) {
    up.load(row, in.data()), dy.load(row, d.data());
    const float weight = weighted ? at(weights, kernel.reads[1], row) : 1;
    double d_weight = 0;
    for (std::int64_t i = 0; i < columns; ++i) {
      const Activated gate = activate(rule.function, in[idx(i)]);
      const float other = rule.gated ? in[idx(columns + i)] : 1;
      d_weight += static_cast<double>(d[idx(i)]) * gate.value * other;
      out[idx(i)] = weight * d[idx(i)] * gate.slope * other;
      if (rule.gated) out[idx(columns + i)] = weight * d[idx(i)] * gate.value;
    }
    d_up.store(row, out.data());
    if (weighted) at(d_weights, kernel.writes[1], row) = static_cast<float>(d_weight);
  }
}

void output_gate(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const RowView x(kernel.reads[0], memory, iteration), gates(kernel.reads[1], memory, iteration),
      y(kernel.writes[0], memory, iteration);
  std::vector<float> values(idx(x.columns())), gate(values.size());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    x.load(row, values.data()), gates.load(row, gate.data());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= sigmoid(gate[i]);
    y.store(row, values.data());
  }
}

void output_gate_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const RowView dy(kernel.reads[0], memory, iteration), x(kernel.reads[1], memory, iteration),
      gates(kernel.reads[2], memory, iteration), dx(kernel.writes[0], memory, iteration),
      d_gates(kernel.writes[1], memory, iteration);
  std::vector<float> d(idx(x.columns())), values(d.size()), gate(d.size());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    dy.load(row, d.data()), x.load(row, values.data()), gates.load(row, gate.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float s = sigmoid(gate[i]);
      gate[i] = d[i] * values[i] * s * (1 - s);
      d[i] *= s;
    }
    dx.store(row, d.data()), d_gates.store(row, gate.data());
  }
}

void add_bias(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const bool backward = kernel.reads[0].shape.size() == 2;
  const RowView rows(backward ? kernel.reads[0] : kernel.updates[0], memory, iteration);
  if (!backward) {
    const std::vector<float> bias = load_vector(kernel.reads[0], memory, iteration);
    for (std::int64_t row = 0; row < rows.rows(); ++row) rows.store(row, bias.data(), /*adds=*/true);
    return;
  }
  std::vector<double> sums(idx(rows.columns()));
  std::vector<float> d(sums.size());
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    rows.load(row, d.data());
    for (std::size_t i = 0; i < d.size(); ++i) sums[i] += d[i];
  }
  const RowResult result = results_of(kernel)[0];
  store_vector(*result.view, memory, iteration, sums, result.adds);
}

}  // namespace cp
