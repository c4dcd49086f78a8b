// What MLPs and gates compute element by element, and biases.
#include <vector>

#include "shared/kernels/activation.h"
#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"
#include "shared/plan/row_rules.h"

namespace cp {
namespace {

// Of column i of a row of gates and what they multiply, or of what alone is activated, times a factor.
Gated activated(const ActivationRule& rule, const std::vector<float>& in, std::int64_t columns,
                std::int64_t i, float factor) {
  const auto limit = static_cast<float>(rule.limit);
  const float gate = factor * in[idx(i)];
  if (!rule.gated) return activate_alone(rule.function, limit, gate);
  return activate_gated(rule.function, limit, static_cast<float>(rule.offset), gate,
                        factor * in[idx(columns + i)]);
}

}  // namespace

void gated_activation(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<ActivationRule>(kernel.rule);
  const RowView up(kernel.reads[0], memory, iteration), y(kernel.writes[0], memory, iteration);
  const bool weighted = kernel.reads.size() > 1;
  float* const weights = weighted ? statistic(kernel.reads[1], memory, iteration) : nullptr;
  const std::int64_t columns = y.columns();
  std::vector<float> in(idx(up.columns())), out(idx(columns));
  for (std::int64_t row = 0; row < y.rows(); ++row) {
    up.load(row, in.data());
    const float weight = weighted ? at(weights, kernel.reads[1], row) : 1,
                of_inputs = rule.weighs_inputs ? weight : 1, of_outputs = rule.weighs_inputs ? 1 : weight;
    for (std::int64_t i = 0; i < columns; ++i)
      out[idx(i)] = of_outputs * activated(rule, in, columns, i, of_inputs).value;
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
    const float weight = weighted ? at(weights, kernel.reads[1], row) : 1,
                of_inputs = rule.weighs_inputs ? weight : 1;
    double d_weight = 0;
    for (std::int64_t i = 0; i < columns; ++i) {
      const Gated of = activated(rule, in, columns, i, of_inputs);
      const double d_gate = static_cast<double>(d[idx(i)]) * of.gate_slope,
                   d_other = static_cast<double>(d[idx(i)]) * of.other_slope;
      if (!rule.weighs_inputs)
        d_weight += static_cast<double>(d[idx(i)]) * of.value;
      else
        d_weight += d_gate * in[idx(i)] + (rule.gated ? d_other * in[idx(columns + i)] : 0);
      out[idx(i)] = static_cast<float>(weight * d_gate);
      if (rule.gated) out[idx(columns + i)] = static_cast<float>(weight * d_other);
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

void group_bias(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const RowView biases(kernel.reads[0], memory, iteration), y(kernel.updates[0], memory, iteration);
  const bool weighted = kernel.reads.size() > 1;
  float* const weights = weighted ? statistic(kernel.reads[1], memory, iteration) : nullptr;
  const std::int64_t of_group = y.rows() / biases.rows();
  std::vector<float> bias(idx(y.columns())), scaled(bias.size());
  for (std::int64_t row = 0; row < y.rows(); ++row) {
    if (row % of_group == 0) biases.load(row / of_group, bias.data());
    const float weight = weighted ? at(weights, kernel.reads[1], row) : 1;
    for (std::size_t i = 0; i < bias.size(); ++i) scaled[i] = weight * bias[i];
    y.store(row, scaled.data(), /*adds=*/true);
  }
}

void group_bias_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const RowView dy(kernel.reads[0], memory, iteration);
  const bool weighted = kernel.reads.size() > 1;
  const std::vector<RowResult> results = results_of(kernel);
  const RowView d_biases(*results[0].view, memory, iteration);
  float* const weights = weighted ? statistic(kernel.reads[2], memory, iteration) : nullptr;
  float* const d_weights = weighted ? statistic(*results[1].view, memory, iteration) : nullptr;
  const std::int64_t of_group = dy.rows() / d_biases.rows();
  std::vector<float> d(idx(dy.columns())), bias(d.size());
  for (std::int64_t group = 0; group < d_biases.rows(); ++group) {
    if (weighted) RowView(kernel.reads[1], memory, iteration).load(group, bias.data());
    std::vector<double> sums(d.size());
    for (std::int64_t row = group * of_group; row < (group + 1) * of_group; ++row) {
      dy.load(row, d.data());
      const double weight = weighted ? at(weights, kernel.reads[2], row) : 1;
      double d_weight = 0;
      for (std::size_t i = 0; i < d.size(); ++i) {
        sums[i] += weight * d[i];
        d_weight += static_cast<double>(d[i]) * bias[i];
      }
      if (weighted) at(d_weights, *results[1].view, row) += static_cast<float>(d_weight);
    }
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = static_cast<float>(sums[i]);
    d_biases.store(group, d.data(), results[0].adds);
  }
}

}  // namespace cp
