#include "sim/proof/run/recurrence_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "shared/base/index.h"
#include "sim/base/parallel_for.h"

namespace cp::sim {
namespace {

// A value head of a batch entry: its rows, and how its state [key_dim, value_dim], row-major, goes through
// them.
//
// With y = S^T k, of the state before a row, both rules are S' = a S + b k w^T, where a = exp(log_decay), b =
// beta and w = v (decay) or v - a y (delta).
class ValueHead {
 public:
  ValueHead(const RecurrenceInputs& in, std::int64_t batch, std::int64_t head)
      : in_(in),
        p_(in.problem),
        batch_(batch),
        head_(head),
        key_head_(head / (p_.value_heads / p_.key_heads)),
        begins_(idx(p_.seq_len)) {
    for (const std::int64_t begin : p_.cu_seqlens) {
      if (begin < p_.seq_len) begins_[idx(begin)] = true;
    }
  }

  // Where a row of this head begins in a tensor like q, like v, and like log_decay.
  std::size_t key_row(std::int64_t row) const {
    return idx(((batch_ * p_.seq_len + row) * p_.key_heads + key_head_) * p_.key_dim);
  }
  std::size_t value_row(std::int64_t row) const { return number_row(row) * idx(p_.value_dim); }
  std::size_t number_row(std::int64_t row) const {
    return idx((batch_ * p_.seq_len + row) * p_.value_heads + head_);
  }

  std::size_t state_size() const { return idx(p_.key_dim * p_.value_dim); }
  bool document_begins(std::int64_t row) const { return begins_[idx(row)]; }

  // The state before a row becomes the one behind it. `written` becomes w.
  void go_through(std::int64_t row, double* state, double* written) const {
    const double *const k = in_.k.data() + key_row(row), *const v = in_.v.data() + value_row(row);
    const double a = std::exp(in_.log_decay[number_row(row)]), b = in_.beta[number_row(row)];
    const std::size_t keys = idx(p_.key_dim), values = idx(p_.value_dim);
    std::copy_n(v, values, written);
    if (p_.rule == RecurrenceRule::delta) {
      for (std::size_t i = 0; i < keys; ++i) {
        for (std::size_t j = 0; j < values; ++j) written[j] -= a * k[i] * state[i * values + j];
      }
    }
    for (std::size_t i = 0; i < keys; ++i) {
      for (std::size_t j = 0; j < values; ++j)
        state[i * values + j] = a * state[i * values + j] + b * k[i] * written[j];
    }
  }

  void forward(RecurrenceOutputs& result) const {
    const std::size_t keys = idx(p_.key_dim), values = idx(p_.value_dim);
    std::vector<double> state(state_size());
    for (std::int64_t row = 0; row < p_.seq_len; ++row) {
      if (document_begins(row)) std::fill(state.begin(), state.end(), 0);
      go_through(row, state.data(), result.written.data() + value_row(row));
      const double* const q = in_.q.data() + key_row(row);
      double* const out = result.out.data() + value_row(row);
      for (std::size_t i = 0; i < keys; ++i) {
        for (std::size_t j = 0; j < values; ++j) out[j] += p_.output_scale() * q[i] * state[i * values + j];
      }
      column_norms(state.data(), result.state_norms.data() + value_row(row));
    }
  }

  // Adds to dq and dk of the key head.
  void backward(const std::vector<double>& dout, RecurrenceGradients& result) const {
    const std::int64_t block =
        static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(p_.seq_len))));
    const std::size_t size = state_size();
    std::vector<double> state(size), gradient(size), written(idx(p_.value_dim));
    std::vector<std::vector<double>> kept, before;  // at the begin of each block; before each row of one
    for (std::int64_t row = 0; row < p_.seq_len; ++row) {
      if (document_begins(row)) std::fill(state.begin(), state.end(), 0);
      if (row % block == 0) kept.push_back(state);
      go_through(row, state.data(), written.data());
    }
    for (; !kept.empty(); kept.pop_back()) {
      const std::int64_t begin = static_cast<std::int64_t>(kept.size() - 1) * block,
                         end = std::min(begin + block, p_.seq_len);
      state = kept.back();
      before.clear();
      for (std::int64_t row = begin; row < end; ++row) {
        if (document_begins(row)) std::fill(state.begin(), state.end(), 0);
        before.push_back(state);
        go_through(row, state.data(), written.data());
      }
      for (std::int64_t row = end - 1; row >= begin; --row) {
        state = before[idx(row - begin)];
        go_through(row, state.data(), written.data());
        go_back_through(row, before[idx(row - begin)].data(), state.data(), written.data(),
                        dout.data() + value_row(row), gradient.data(), result);
        if (document_begins(row)) std::fill(gradient.begin(), gradient.end(), 0);
      }
    }
  }

 private:
  void column_norms(const double* state, double* norms) const {
    const std::size_t values = idx(p_.value_dim);
    for (std::size_t i = 0; i < state_size(); ++i) norms[i % values] += state[i] * state[i];
    for (std::size_t j = 0; j < values; ++j) norms[j] = std::sqrt(norms[j]);
  }

  // `gradient`, that of the state behind the row by later rows, becomes that of the state before it. With S
  // and S' as these states, G as the gradient of S' by this row's output too, and z = G^T k:
  //   dq = scale S' dout      dk = b (G w - a S z)             dv = b z      dbeta = z w
  //   dS = a (G - b k z^T)    dlog_decay = a (<G, S> - b z y)
  // where the terms behind the minus signs are of the delta rule alone.
  void go_back_through(std::int64_t row, const double* before, const double* behind, const double* written,
                       const double* dout, double* gradient, RecurrenceGradients& result) const {
    const double *const q = in_.q.data() + key_row(row), *const k = in_.k.data() + key_row(row);
    const double a = std::exp(in_.log_decay[number_row(row)]), b = in_.beta[number_row(row)];
    const double erases = p_.rule == RecurrenceRule::delta ? 1 : 0, scale = p_.output_scale();
    const std::size_t keys = idx(p_.key_dim), values = idx(p_.value_dim);
    double* const z = result.dwritten.data() + value_row(row);
    std::vector<double> y(values), products(values);  // of G and S, by column
    for (std::size_t i = 0; i < keys; ++i) {
      double dq = 0;
      for (std::size_t j = 0; j < values; ++j) dq += scale * behind[i * values + j] * dout[j];
      result.dq[key_row(row) + i] += dq;
      for (std::size_t j = 0; j < values; ++j) {
        const std::size_t at = i * values + j;
        gradient[at] += scale * q[i] * dout[j];
        z[j] += gradient[at] * k[i];
        y[j] += before[at] * k[i];
        products[j] += gradient[at] * before[at];
      }
    }
    column_norms(gradient, result.dstate_norms.data() + value_row(row));
    double &dbeta = result.dbeta[number_row(row)], &dlog_decay = result.dlog_decay[number_row(row)];
    for (std::size_t j = 0; j < values; ++j) {
      result.dv[value_row(row) + j] = b * z[j];
      dbeta += z[j] * written[j];
      dlog_decay += a * (products[j] - erases * b * z[j] * y[j]);
    }
    for (std::size_t i = 0; i < keys; ++i) {
      double dk = 0;
      for (std::size_t j = 0; j < values; ++j) {
        const std::size_t at = i * values + j;
        dk += b * (gradient[at] * written[j] - erases * a * before[at] * z[j]);
        gradient[at] = a * (gradient[at] - erases * b * k[i] * z[j]);
      }
      result.dk[key_row(row) + i] += dk;
    }
  }

  const RecurrenceInputs& in_;
  const RecurrenceProblem& p_;
  const std::int64_t batch_, head_, key_head_;
  std::vector<bool> begins_;  // by row
};

// work(value head), for each; those that share a key head come one after the other.
template <class Work>
void for_each_value_head(const RecurrenceInputs& inputs, const Work& work) {
  const RecurrenceProblem& problem = inputs.problem;
  parallel_for(idx(problem.batch * problem.key_heads), num_cores(), [&](std::size_t lane, std::size_t) {
    const std::int64_t each = problem.value_heads / problem.key_heads,
                       batch = static_cast<std::int64_t>(lane) / problem.key_heads,
                       key_head = static_cast<std::int64_t>(lane) % problem.key_heads;
    for (std::int64_t head = key_head * each; head < (key_head + 1) * each; ++head)
      work(ValueHead(inputs, batch, head));
  });
}

}  // namespace

RecurrenceOutputs reference_recurrence(const RecurrenceInputs& inputs) {
  RecurrenceOutputs result;
  for (std::vector<double>* tensor : {&result.out, &result.written, &result.state_norms})
    tensor->resize(inputs.v.size());
  for_each_value_head(inputs, [&](const ValueHead& head) { head.forward(result); });
  return result;
}

RecurrenceGradients reference_recurrence_gradients(const RecurrenceInputs& inputs,
                                                   const std::vector<double>& dout) {
  RecurrenceGradients result;
  result.dq.resize(inputs.q.size()), result.dk.resize(inputs.k.size());
  for (std::vector<double>* tensor : {&result.dv, &result.dwritten, &result.dstate_norms})
    tensor->resize(inputs.v.size());
  result.dlog_decay.resize(inputs.log_decay.size()), result.dbeta.resize(inputs.beta.size());
  for_each_value_head(inputs, [&](const ValueHead& head) { head.backward(dout, result); });
  return result;
}

}  // namespace cp::sim
