// Norms of rows by their root mean square, or by that of what is left without their mean. Sums are in f64:
// they are as long as a row is wide.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"
#include "shared/plan/row_rules.h"

namespace cp {
namespace {

// A group of columns of a row, and the number of its kind, which is that of its weight.
struct Columns {
  std::size_t kind = 0;
  std::int64_t first = 0, width = 0;
};

// What norms and their sums have in common: the rows, and the factors o + w of each weight.
class Norm {
 public:
  Norm(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration, bool has_weights)
      : rule_(std::get<NormRule>(kernel.rule)), x_(kernel.reads[0], memory, iteration) {
    for (std::int64_t g = 0; g < rule_.groups; ++g) groups_.push_back({0, g * rule_.width, rule_.width});
    for (std::int64_t g = 0; g < rule_.more_groups; ++g)
      groups_.push_back({1, rule_.groups * rule_.width + g * rule_.more_width, rule_.more_width});
    if (!has_weights) return;
    if (rule_.unweighted)
      factors_ = {std::vector<float>(idx(rule_.width), 1), std::vector<float>(idx(rule_.more_width), 1)};
    for (std::size_t weight = 0; weight < idx(rule_.weights()); ++weight) {
      factors_[weight] = load_vector(kernel.reads[1 + weight], memory, iteration);
      if (!rule_.unit_offset) continue;
      for (float& factor : factors_[weight]) factor += 1;
    }
  }

  const RowView& x() const { return x_; }
  const std::vector<Columns>& groups() const { return groups_; }
  const float* factors(const Columns& group) const { return factors_[group.kind].data(); }
  std::int64_t normalized() const { return rule_.normalized(); }

  // Subtracts the means of groups from a row's columns. In the backward pass these are gradients, too: what
  // subtracts a mean is its own transpose.
  void center(std::vector<float>& row) const {
    if (!rule_.centered) return;
    for (const Columns& group : groups_) {
      float* const values = row.data() + group.first;
      const double sum = std::accumulate(values, values + group.width, 0.0);
      const auto mean = static_cast<float>(sum / static_cast<double>(group.width));
      std::for_each(values, values + group.width, [mean](float& value) { value -= mean; });
    }
  }
  double divisor(const Columns& group) const { return static_cast<double>(group.width * rule_.ranks); }
  double inverse_root(const Columns& group, double squares) const {
    return 1 / std::sqrt(squares / divisor(group) + rule_.eps);
  }
  static double squares(const Columns& group, const float* x) {
    double sum = 0;
    for (std::int64_t i = 0; i < group.width; ++i) {
      const double value = x[group.first + i];
      sum += value * value;
    }
    return sum;
  }
  double products(const Columns& group, const float* x, const float* dy) const {
    double sum = 0;
    for (std::int64_t i = 0; i < group.width; ++i)
      sum += static_cast<double>(factors(group)[i] * dy[group.first + i]) * x[group.first + i];
    return sum;
  }

 private:
  const NormRule& rule_;
  RowView x_;
  std::vector<Columns> groups_;
  std::array<std::vector<float>, 2> factors_;
};

// The statistics behind the first `known` operands, if ranks share the groups.
struct Sums {
  const View* view = nullptr;
  float* values = nullptr;
  double of(const Columns& group, std::int64_t row) const {
    return at(values, *view, row, static_cast<std::int64_t>(group.kind));
  }
};
Sums sums_of(const View& view, const HostMemory& memory, std::int64_t iteration) {
  return {&view, statistic(view, memory, iteration)};
}

}  // namespace

void rms_norm(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const Norm norm(kernel, memory, iteration, true);
  const auto& rule = std::get<NormRule>(kernel.rule);
  const Sums squares = rule.ranks > 1 ? sums_of(kernel.reads.back(), memory, iteration) : Sums{};
  const RowView y(kernel.writes[0], memory, iteration);
  std::vector<float> values(idx(norm.x().columns()));
  for (std::int64_t row = 0; row < norm.x().rows(); ++row) {
    norm.x().load(row, values.data());
    norm.center(values);
    for (const Columns& group : norm.groups()) {
      float* x = values.data() + group.first;
      const double sum = rule.ranks > 1 ? squares.of(group, row) : Norm::squares(group, values.data());
      const auto r = static_cast<float>(norm.inverse_root(group, sum));
      for (std::int64_t i = 0; i < group.width; ++i) x[i] *= r * norm.factors(group)[i];
    }
    y.store(row, values.data());
  }
}

void rms_norm_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const Norm norm(kernel, memory, iteration, true);
  const auto& rule = std::get<NormRule>(kernel.rule);
  const std::size_t weights = idx(rule.weights());
  const RowView dy(kernel.reads[1 + weights], memory, iteration);
  const bool shared = rule.ranks > 1;
  const Sums squares = shared ? sums_of(kernel.reads[2 + weights], memory, iteration) : Sums{},
             products = shared ? sums_of(kernel.reads[3 + weights], memory, iteration) : Sums{};
  const std::vector<RowResult> results = results_of(kernel);
  const RowView dx(*results[0].view, memory, iteration);
  std::array<std::vector<double>, 2> d_weights{std::vector<double>(idx(rule.width)),
                                               std::vector<double>(idx(rule.more_width))};
  std::vector<float> x(idx(norm.x().columns())), d(x.size());
  for (std::int64_t row = 0; row < norm.x().rows(); ++row) {
    norm.x().load(row, x.data()), dy.load(row, d.data());
    norm.center(x);
    for (const Columns& group : norm.groups()) {
      const double r =
          norm.inverse_root(group, shared ? squares.of(group, row) : Norm::squares(group, x.data()));
      const double along = (shared ? products.of(group, row) : norm.products(group, x.data(), d.data())) * r *
                           r * r / norm.divisor(group);
      for (std::int64_t i = 0; i < group.width; ++i) {
        const double value = x[idx(group.first + i)], gradient = d[idx(group.first + i)];
        d_weights[group.kind][idx(i)] += gradient * value * r;
        d[idx(group.first + i)] = static_cast<float>(r * norm.factors(group)[i] * gradient - value * along);
      }
    }
    norm.center(d);
    dx.store(row, d.data(), results[0].adds);
  }
  for (std::size_t weight = 0; weight < weights; ++weight)
    store_vector(*results[1 + weight].view, memory, iteration, d_weights[weight], results[1 + weight].adds);
}

void norm_sums(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const bool backward = kernel.operation == RowOperation::norm_sums_backward;
  const Norm norm(kernel, memory, iteration, backward);
  const View& out = kernel.writes[0];
  float* const sums = statistic(out, memory, iteration);
  const RowView dy(kernel.reads.back(), memory, iteration);
  std::vector<float> x(idx(norm.x().columns())), d(x.size());
  for (std::int64_t row = 0; row < norm.x().rows(); ++row) {
    norm.x().load(row, x.data());
    if (backward) dy.load(row, d.data());
    for (const Columns& group : norm.groups()) {
      const double sum = backward ? norm.products(group, x.data(), d.data()) : Norm::squares(group, x.data());
      at(sums, out, row, static_cast<std::int64_t>(group.kind)) = static_cast<float>(sum);
    }
  }
}

}  // namespace cp
