// What one row does to the state of a head, forward and backward: the formulas of RecurrenceRule (plan.h).
//
// S is [key_dim][value_dim], row-major, so that all inner loops run over neighbouring values. With P =
// exp(log_decay) S and, for the delta rule, w = v - P^T k (else w = v), a row makes S' = P + k (beta w)^T.
#pragma once

#include <cmath>
#include <cstdint>

#include "shared/plan/plan.h"

namespace cp {

struct StateSize {
  std::int64_t keys = 0, values = 0;
  std::int64_t numel() const { return keys * values; }
};

// out[j] = sum over i of x[i] S[i][j], in ascending i.
inline void times_state(const float* x, const float* state, StateSize size, float* out) {
  for (std::int64_t j = 0; j < size.values; ++j) out[j] = 0;
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const float factor = x[i], *row = state + i * size.values;
    for (std::int64_t j = 0; j < size.values; ++j) out[j] += factor * row[j];
  }
}
// out[i] += factor * sum over j of S[i][j] y[j].
inline void add_state_times(const float* state, const float* y, StateSize size, float factor, float* out) {
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const float* row = state + i * size.values;
    float sum = 0;
    for (std::int64_t j = 0; j < size.values; ++j) sum += row[j] * y[j];
    out[i] += factor * sum;
  }
}
// S[i][j] += factor x[i] y[j].
inline void add_outer(float* state, const float* x, const float* y, StateSize size, float factor) {
  for (std::int64_t i = 0; i < size.keys; ++i) {
    const float scaled = factor * x[i];
    float* row = state + i * size.values;
    for (std::int64_t j = 0; j < size.values; ++j) row[j] += scaled * y[j];
  }
}
inline void scale_state(float* state, StateSize size, float factor) {
  for (std::int64_t i = 0; i < size.numel(); ++i) state[i] *= factor;
}

// A row of one head.
struct RecurrenceRow {
  const float *k = nullptr, *v = nullptr;
  float log_decay = 0, beta = 0;
};

// S becomes P, and w is what is written with it. A null v is zeros.
inline void begin_row(RecurrenceRule rule, const RecurrenceRow& row, StateSize size, float* state, float* w) {
  scale_state(state, size, std::exp(row.log_decay));
  if (rule == RecurrenceRule::delta) {
    times_state(row.k, state, size, w);
    for (std::int64_t j = 0; j < size.values; ++j) w[j] = (row.v == nullptr ? 0 : row.v[j]) - w[j];
  } else {
    for (std::int64_t j = 0; j < size.values; ++j) w[j] = row.v == nullptr ? 0 : row.v[j];
  }
}

// S becomes S'. `w` is scratch of value_dim.
inline void apply_row(RecurrenceRule rule, const RecurrenceRow& row, StateSize size, float* state, float* w) {
  begin_row(rule, row, size, state, w);
  add_outer(state, row.k, w, size, row.beta);
}

// The way back through a row, from dS' (with what the row's output adds) to dP, in two steps, since the
// gradient of beta is du w: du = dS'^T k is the gradient of beta w; then du becomes dw, and dS' dP.
inline void gradient_of_written(const RecurrenceRow& row, StateSize size, const float* dstate, float* du) {
  times_state(row.k, dstate, size, du);
}
inline void end_row_backward(RecurrenceRule rule, const RecurrenceRow& row, StateSize size, float* dstate,
                             float* du) {
  for (std::int64_t j = 0; j < size.values; ++j) du[j] *= row.beta;
  if (rule == RecurrenceRule::delta) add_outer(dstate, row.k, du, size, -1);
}

}  // namespace cp
