// Rows of recurrent layers: the short convolution along the sequence, what heads decay by and write with, and
// the norm and gates of their outputs. Sums over rows and columns are in f64.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "shared/kernels/activation.h"
#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"
#include "shared/plan/row_rules.h"

namespace cp {
namespace {

Activated silu(float x) { return activate(ActivationFunction::silu, x); }

// ---- the convolution ----

// What the convolution and its gradients have in common. Its rows are visited chain by chain: rows of x and
// of the halo, of one sequence, that follow one another from a begin on.
class Convolution {
 public:
  Convolution(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration)
      : rule_(std::get<ConvolutionRule>(kernel.rule)),
        operands_(convolution_operands(kernel)),
        x_(*operands_.x, memory, iteration),
        weights_(load_vector(*operands_.weights, memory, iteration)) {
    if (operands_.bias != nullptr) bias_ = load_vector(*operands_.bias, memory, iteration);
    if (operands_.halo != nullptr) halo_.emplace(*operands_.halo, memory, iteration);
    for (const View* view : operands_.outputs) outputs_.emplace_back(*view, memory, iteration);
  }

  struct Place {
    bool of_halo = false;
    std::int64_t row = 0;
  };
  using Chain = std::vector<Place>;

  template <class F>
  void for_each_chain(const F& f) const {
    const std::int64_t rows = x_.rows() / rule_.sequences;
    Chain chain;
    const auto end_chain = [&] {
      if (!chain.empty()) f(chain);
      chain.clear();
    };
    for (std::int64_t sequence = 0; sequence < rule_.sequences; ++sequence) {
      for (const ConvolvedRun& run : rule_.runs) {
        if (run.begins) end_chain();
        const std::int64_t first = run.first + sequence * (run.of_halo ? run.rows : rows);
        for (std::int64_t row = 0; row < run.rows; ++row) chain.push_back({run.of_halo, first + row});
      }
      end_chain();
    }
  }

  std::int64_t columns() const { return x_.columns(); }
  std::int64_t taps() const { return rule_.taps; }
  float weight(std::int64_t column, std::int64_t tap) const {
    return weights_[idx(column * rule_.taps + tap)];
  }
  const std::vector<RowView>& outputs() const { return outputs_; }

  std::vector<float> load(const Chain& chain) const {
    std::vector<float> rows(chain.size() * idx(columns()));
    for (std::size_t i = 0; i < chain.size(); ++i)
      (chain[i].of_halo ? *halo_ : x_).load(chain[i].row, rows.data() + i * idx(columns()));
    return rows;
  }

  // The tap that sees the chain's row 0 from row i, or the first tap of all.
  std::int64_t first_tap(std::int64_t i) const { return std::max<std::int64_t>(0, rule_.taps - 1 - i); }

  // Of row i of a chain, before what normalizes q and k.
  void activate_row(const std::vector<float>& rows, std::int64_t i, std::vector<Activated>& row) const {
    for (std::int64_t c = 0; c < columns(); ++c) {
      double sum = bias_.empty() ? 0 : bias_[idx(c)];
      for (std::int64_t tap = first_tap(i); tap < rule_.taps; ++tap)
        sum += static_cast<double>(weight(c, tap)) * rows[idx((i - rule_.taps + 1 + tap) * columns() + c)];
      row[idx(c)] = activate(function_, static_cast<float>(sum));
    }
  }

  // f(first column, end, factor) for each head that is normalized.
  template <class F>
  void for_each_head(const std::vector<Activated>& row, const F& f) const {
    if (rule_.normalized == 0) return;
    const std::int64_t normalized = outputs_[0].columns() + outputs_[1].columns();
    for (std::int64_t first = 0; first < normalized; first += rule_.normalized) {
      double squares = rule_.eps;
      for (std::int64_t c = first; c < first + rule_.normalized; ++c)
        squares += static_cast<double>(row[idx(c)].value) * row[idx(c)].value;
      f(first, first + rule_.normalized, 1 / std::sqrt(squares));
    }
  }

 private:
  const ConvolutionRule& rule_;
  const ActivationFunction function_ = rule_.plain ? ActivationFunction::identity : ActivationFunction::silu;
  const ConvolutionOperands operands_;
  const RowView x_;
  std::optional<RowView> halo_;
  std::vector<RowView> outputs_;
  const std::vector<float> weights_;
  std::vector<float> bias_;
};

}  // namespace

void short_convolution(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const Convolution convolution(kernel, memory, iteration);
  std::vector<Activated> row(idx(convolution.columns()));
  std::vector<float> values(row.size());
  convolution.for_each_chain([&](const Convolution::Chain& chain) {
    const std::vector<float> rows = convolution.load(chain);
    for (std::int64_t i = 0; i < std::ssize(chain); ++i) {
      if (chain[idx(i)].of_halo) continue;
      convolution.activate_row(rows, i, row);
      for (std::size_t c = 0; c < row.size(); ++c) values[c] = row[c].value;
      convolution.for_each_head(row, [&](std::int64_t first, std::int64_t end, double factor) {
        for (std::int64_t c = first; c < end; ++c) values[idx(c)] *= static_cast<float>(factor);
      });
      const float* at = values.data();
      for (const RowView& part : convolution.outputs()) {
        part.store(chain[idx(i)].row, at);
        at += part.columns();
      }
    }
  });
}

void short_convolution_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const Convolution convolution(kernel, memory, iteration);
  const ConvolutionOperands operands = convolution_operands(kernel);
  const std::vector<RowResult> results = results_of(kernel);
  const RowView dx(*results[0].view, memory, iteration);
  std::optional<RowView> d_halo;
  if (operands.halo != nullptr) d_halo.emplace(*results[1].view, memory, iteration);
  const std::int64_t columns = convolution.columns(), taps = convolution.taps();
  std::vector<double> d_weights(idx(columns * taps)), d_bias(idx(columns));
  std::vector<Activated> row(idx(columns));
  std::vector<float> d(row.size());
  convolution.for_each_chain([&](const Convolution::Chain& chain) {
    const std::vector<float> rows = convolution.load(chain);
    std::vector<double> d_rows(rows.size());
    for (std::int64_t i = 0; i < std::ssize(chain); ++i) {
      if (chain[idx(i)].of_halo) continue;
      convolution.activate_row(rows, i, row);
      float* at = d.data();
      for (const RowView& part : convolution.outputs()) {
        part.load(chain[idx(i)].row, at);
        at += part.columns();
      }
      convolution.for_each_head(row, [&](std::int64_t first, std::int64_t end, double factor) {
        double along = 0;
        for (std::int64_t c = first; c < end; ++c)
          along += static_cast<double>(d[idx(c)]) * row[idx(c)].value;
        along *= factor * factor * factor;
        for (std::int64_t c = first; c < end; ++c)
          d[idx(c)] = static_cast<float>(factor * d[idx(c)] - along * row[idx(c)].value);
      });
      for (std::int64_t c = 0; c < columns; ++c) {
        const double dz = static_cast<double>(d[idx(c)]) * row[idx(c)].slope;
        d_bias[idx(c)] += dz;
        for (std::int64_t tap = convolution.first_tap(i); tap < taps; ++tap) {
          const auto seen = idx((i - taps + 1 + tap) * columns + c);
          d_weights[idx(c * taps + tap)] += dz * rows[seen];
          d_rows[seen] += dz * convolution.weight(c, tap);
        }
      }
    }
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const double* at = d_rows.data() + i * idx(columns);
      std::copy(at, at + columns, d.begin());
      if (chain[i].of_halo)
        d_halo->store(chain[i].row, d.data(), results[1].adds);
      else
        dx.store(chain[i].row, d.data(), results[0].adds);
    }
  });
  const std::size_t learnt = operands.halo != nullptr ? 2 : 1;
  store_vector(*results[learnt].view, memory, iteration, d_weights, results[learnt].adds);
  if (operands.bias != nullptr)
    store_vector(*results.back().view, memory, iteration, d_bias, results.back().adds);
}

// ---- decay and beta ----

namespace {

class Decay {
 public:
  Decay(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration)
      : numbers_(kernel.reads[0], memory, iteration),
        of_heads_(load_vector(kernel.reads[1], memory, iteration)),
        row_(idx(numbers_.columns())) {}

  std::int64_t rows() const { return numbers_.rows(); }
  std::int64_t heads() const { return std::ssize(of_heads_) / 2; }
  bool has_beta() const { return numbers_.columns() > heads(); }
  void load(std::int64_t row) { numbers_.load(row, row_.data()); }

  float rate(std::int64_t head) const { return -std::exp(of_heads_[idx(head)]); }
  // What softplus makes a step of: a + dt_bias.
  float step_logit(std::int64_t head) const {
    return row_[idx(has_beta() ? heads() + head : head)] + of_heads_[idx(heads() + head)];
  }
  float beta_logit(std::int64_t head) const { return row_[idx(head)]; }

 private:
  const RowView numbers_;
  const std::vector<float> of_heads_;
  std::vector<float> row_;
};

}  // namespace

void decay_and_beta(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  Decay decay(kernel, memory, iteration);
  const View &log_decay = kernel.writes[0], &beta = kernel.writes[1];
  float* const decays = statistic(log_decay, memory, iteration);
  float* const betas = statistic(beta, memory, iteration);
  for (std::int64_t row = 0; row < decay.rows(); ++row) {
    decay.load(row);
    for (std::int64_t head = 0; head < decay.heads(); ++head) {
      const float step = softplus(decay.step_logit(head));
      at(decays, log_decay, row, head) = decay.rate(head) * step;
      at(betas, beta, row, head) = decay.has_beta() ? sigmoid(decay.beta_logit(head)) : step;
    }
  }
}

void decay_and_beta_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  Decay decay(kernel, memory, iteration);
  const View &log_decay = kernel.reads[2], &beta = kernel.reads[3];
  float* const d_decays = statistic(log_decay, memory, iteration);
  float* const d_betas = statistic(beta, memory, iteration);
  const std::vector<RowResult> results = results_of(kernel);
  const RowView d_numbers(*results[0].view, memory, iteration);
  const std::int64_t heads = decay.heads();
  std::vector<double> d_of_heads(idx(2 * heads));
  std::vector<float> d(idx(d_numbers.columns()));
  for (std::int64_t row = 0; row < decay.rows(); ++row) {
    decay.load(row);
    for (std::int64_t head = 0; head < heads; ++head) {
      const float logit = decay.step_logit(head), rate = decay.rate(head);
      const double d_decay = at(d_decays, log_decay, row, head), d_beta = at(d_betas, beta, row, head);
      // The slope of softplus is the sigmoid; exp(A_log) is its own.
      const double d_step =
          (d_decay * rate + (decay.has_beta() ? 0 : d_beta)) * static_cast<double>(sigmoid(logit));
      d_of_heads[idx(head)] += d_decay * rate * softplus(logit);
      d_of_heads[idx(heads + head)] += d_step;
      d[idx(decay.has_beta() ? heads + head : head)] = static_cast<float>(d_step);
      if (!decay.has_beta()) continue;
      const double b = sigmoid(decay.beta_logit(head));
      d[idx(head)] = static_cast<float>(d_beta * b * (1 - b));
    }
    d_numbers.store(row, d.data(), results[0].adds);
  }
  store_vector(*results[1].view, memory, iteration, d_of_heads, results[1].adds);
}

// ---- norm and gates ----

namespace {

// What the norm and its gradients have in common: a row, and what is normalized of it.
class GatedNorm {
 public:
  GatedNorm(const RowKernel& kernel, std::size_t first, const HostMemory& memory, std::int64_t iteration)
      : rule_(std::get<GatedNormRule>(kernel.rule)),
        skips_(kernel.reads.size() > first + 3),
        x_(kernel.reads[first], memory, iteration),
        gates_(kernel.reads[first + 1], memory, iteration),
        weight_(load_vector(kernel.reads[first + (skips_ ? 3 : 2)], memory, iteration)),
        x(idx(x_.columns())),
        v(x.size()),
        gate(x.size()),
        normalized(x.size()) {
    if (!skips_) return;
    v_.emplace(kernel.reads[first + 2], memory, iteration);
    skip_ = load_vector(kernel.reads[first + 4], memory, iteration);
  }

  bool skips() const { return skips_; }
  std::int64_t rows() const { return x_.rows(); }
  std::int64_t width() const { return rule_.width; }
  std::size_t weights() const { return weight_.size(); }
  std::size_t heads() const { return skip_.size(); }
  float weight(std::size_t i) const { return weight_[i % weight_.size()]; }
  std::size_t head_of(std::size_t i) const { return i * skip_.size() / x.size(); }
  float skip(std::size_t i) const { return skips_ ? skip_[head_of(i)] : 0; }

  void load(std::int64_t row) {
    x_.load(row, x.data());
    if (v_) v_->load(row, v.data());
    std::vector<float>& gates = normalized;  // until they are used
    gates_.load(row, gates.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      gate[i] = silu(gates[i]);
      x[i] += skip(i) * v[i];
      normalized[i] = skips_ ? x[i] * gate[i].value : x[i];
    }
  }
  double inverse_root(std::size_t first) const {
    double squares = 0;
    for (std::size_t i = first; i < first + idx(rule_.width); ++i)
      squares += static_cast<double>(normalized[i]) * normalized[i];
    return 1 / std::sqrt(squares / static_cast<double>(rule_.width) + rule_.eps);
  }

 private:
  const GatedNormRule& rule_;
  const bool skips_;
  const RowView x_, gates_;
  std::optional<RowView> v_;
  const std::vector<float> weight_;
  std::vector<float> skip_;

 public:
  // Of the row: x with what is added to it, v, the gates' activations, and what is normalized.
  std::vector<float> x, v;
  std::vector<Activated> gate;
  std::vector<float> normalized;
};

}  // namespace

void gated_norm(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  GatedNorm norm(kernel, 0, memory, iteration);
  const RowView y(kernel.writes[0], memory, iteration);
  std::vector<float> out(norm.x.size());
  for (std::int64_t row = 0; row < norm.rows(); ++row) {
    norm.load(row);
    for (std::size_t first = 0; first < out.size(); first += idx(norm.width())) {
      const auto r = static_cast<float>(norm.inverse_root(first));
      for (std::size_t i = first; i < first + idx(norm.width()); ++i)
        out[i] = norm.normalized[i] * r * norm.weight(i) * (norm.skips() ? 1 : norm.gate[i].value);
    }
    y.store(row, out.data());
  }
}

void gated_norm_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  GatedNorm norm(kernel, 1, memory, iteration);
  const RowView dy(kernel.reads[0], memory, iteration);
  const std::vector<RowResult> results = results_of(kernel);
  std::vector<RowView> written;
  for (std::size_t i = 0; i < (norm.skips() ? 3U : 2U); ++i)
    written.emplace_back(*results[i].view, memory, iteration);
  std::vector<double> d_weight(norm.weights()), d_skip(norm.heads());
  std::vector<float> d(norm.x.size()), d_gates(d.size()), d_v(d.size());
  for (std::int64_t row = 0; row < norm.rows(); ++row) {
    norm.load(row), dy.load(row, d.data());
    for (std::size_t first = 0; first < d.size(); first += idx(norm.width())) {
      const std::size_t end = first + idx(norm.width());
      const double r = norm.inverse_root(first);
      // The gradient of the normalized values times r, and its part along them.
      const auto gradient = [&](std::size_t i) {
        return static_cast<double>(d[i]) * norm.weight(i) * (norm.skips() ? 1 : norm.gate[i].value);
      };
      double along = 0;
      for (std::size_t i = first; i < end; ++i) along += gradient(i) * norm.normalized[i];
      along *= r * r * r / static_cast<double>(norm.width());
      for (std::size_t i = first; i < end; ++i) {
        const double du = r * gradient(i) - along * norm.normalized[i], value = norm.normalized[i] * r,
                     gate = norm.gate[i].value, slope = norm.gate[i].slope;
        d_weight[i % d_weight.size()] += static_cast<double>(d[i]) * value * (norm.skips() ? 1 : gate);
        if (norm.skips()) {
          d_gates[i] = static_cast<float>(du * norm.x[i] * slope);
          d_v[i] = static_cast<float>(du * gate * norm.skip(i));
          d_skip[norm.head_of(i)] += du * gate * norm.v[i];
          d[i] = static_cast<float>(du * gate);
        } else {
          d_gates[i] = static_cast<float>(static_cast<double>(d[i]) * value * norm.weight(i) * slope);
          d[i] = static_cast<float>(du);
        }
      }
    }
    written[0].store(row, d.data(), results[0].adds), written[1].store(row, d_gates.data(), results[1].adds);
    if (norm.skips()) written[2].store(row, d_v.data(), results[2].adds);
  }
  store_vector(*results[written.size()].view, memory, iteration, d_weight, results[written.size()].adds);
  if (norm.skips()) store_vector(*results.back().view, memory, iteration, d_skip, results.back().adds);
}

}  // namespace cp
