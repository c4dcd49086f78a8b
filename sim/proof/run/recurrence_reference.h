// Computes a recurrent layer and its gradients on one device in float64, row after row, by the formulas of
// RecurrenceRule (shared/plan/plan.h). Runs of plans are compared with this. It shares no code with the
// kernels and the planner, and arranges the formulas otherwise than they do. Heads are shared among the
// cores.
#pragma once

#include <vector>

#include "shared/recurrence/problem.h"

namespace cp::sim {

// The inputs, which must outlive the call. All tensors here are global and row-major: q, k [batch, seq_len,
// key_heads, key_dim], v [batch, seq_len, value_heads, value_dim], log_decay and beta [batch, seq_len,
// value_heads]. out and dout are like v, and gradients like what they are of.
struct RecurrenceInputs {
  const RecurrenceProblem& problem;
  const std::vector<double>&q, &k, &v, &log_decay, &beta;
};

// Beside the results stands what bounds errors (recurrence_tolerance.h). The columns of a state never meet:
// column j takes in value j of each row, and so there is one number for each row and column, in tensors like
// v.
struct RecurrenceOutputs {
  std::vector<double> out;
  std::vector<double> written;      // w: what each row writes, but for beta: v, with delta less what is there
  std::vector<double> state_norms;  // of the columns of the state behind each row
};
RecurrenceOutputs reference_recurrence(const RecurrenceInputs& inputs);

struct RecurrenceGradients {
  std::vector<double> dq, dk, dv, dlog_decay, dbeta;
  std::vector<double> dwritten;      // the gradient of beta w
  std::vector<double> dstate_norms;  // of the columns of the gradient of the state behind each row
};
// Keeps the states at about sqrt(seq_len) rows of one head, and of all rows between two of those.
RecurrenceGradients reference_recurrence_gradients(const RecurrenceInputs& inputs,
                                                   const std::vector<double>& dout);

}  // namespace cp::sim
