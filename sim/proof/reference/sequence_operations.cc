// The operations along the sequence. Attention and recurrences are those that runs of single layers are
// compared with (sim/proof/run), in matrices of rows.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "sim/proof/reference/operations.h"
#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/recurrence_reference.h"

namespace cp::sim {
namespace {

// Turns each row's pairs by its angles, or back.
void turn(Matrix64& x, const Rotary& rotary, const std::vector<std::int64_t>& positions, double direction) {
  const std::int64_t pairs = std::ssize(rotary.frequencies);
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (double* head = x.row(i); head != x.row(i + 1); head += rotary.head_dim) {
      for (std::int64_t j = 0; j < pairs; ++j) {
        const double angle = direction * static_cast<double>(positions[idx(i)]) * rotary.frequencies[idx(j)];
        double& a = head[rotary.first + (rotary.neighbours ? 2 * j : j)];
        double& b = head[rotary.first + (rotary.neighbours ? 2 * j + 1 : j + pairs)];
        const double turned_a = a * std::cos(angle) - b * std::sin(angle),
                     turned_b = a * std::sin(angle) + b * std::cos(angle);
        a = rotary.size * turned_a, b = rotary.size * turned_b;
      }
    }
  }
}

void add_to(Matrix64& sum, const std::vector<double>& terms) {
  for (std::size_t i = 0; i < terms.size(); ++i) sum.values[i] += terms[i];
}

// A row has all its heads one after the other, and attention wants all rows of a head: the middle two of the
// four dimensions of [batch, rows, heads, dim] change places.
std::vector<double> swap_middle(const std::vector<double>& from, std::int64_t batch, std::int64_t rows,
                                std::int64_t heads) {
  std::vector<double> to(from.size());
  const std::int64_t dim = std::ssize(from) / std::max<std::int64_t>(1, batch * rows * heads);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t h = 0; h < heads; ++h)
        std::copy_n(from.begin() + ((b * rows + i) * heads + h) * dim, dim,
                    to.begin() + ((b * heads + h) * rows + i) * dim);
    }
  }
  return to;
}

// What attention's two passes have in common. It stays where it is, since its inputs are references.
struct AttentionPasses {
  AttentionPasses(AttentionProblem p, Variable q_rows, Variable k_rows, Variable v_rows,
                  const Variable* sink_row, const DropoutPlace& place)
      : problem(std::move(p)),
        q(swap_middle(q_rows.value().values, problem.batch, problem.q_len, problem.q_heads)),
        k(swap_middle(k_rows.value().values, problem.batch, problem.kv_len, problem.kv_heads)),
        v(swap_middle(v_rows.value().values, problem.batch, problem.kv_len, problem.kv_heads)),
        sinks(sink_row == nullptr ? std::vector<double>() : sink_row->value().values),
        inputs{problem, q, k, v, sinks, place.seed, nullptr, place.first_batch},
        forward(reference_forward(inputs)) {}

  const AttentionProblem problem;
  const std::vector<double> q, k, v, sinks;
  const ReferenceInputs inputs;
  const ReferenceForward forward;
};

}  // namespace

// A turn back is the transpose of a turn.
Variable rotate(Variable x, const Rotary& rotary, std::vector<std::int64_t> positions) {
  Matrix64 out = x.value();
  turn(out, rotary, positions, 1);
  return x.tape().record(std::move(out),
                         [x, rotary, positions = std::move(positions)](const Matrix64&, const Matrix64& d) {
                           Matrix64 back = d;
                           turn(back, rotary, positions, -1);
                           add_to(x.gradient(), back.values);
                         });
}

Variable attention(const AttentionProblem& problem, Variable q, Variable k, Variable v, const Variable* sinks,
                   const DropoutPlace& place) {
  const auto passes = std::make_shared<const AttentionPasses>(problem, q, k, v, sinks, place);
  Matrix64 out(q.rows(), problem.q_heads * problem.v_head_dim);
  out.values = swap_middle(passes->forward.out, problem.batch, problem.q_heads, problem.q_len);
  const std::vector<Variable> sink_row = sinks == nullptr ? std::vector<Variable>() : std::vector{*sinks};
  return q.tape().record(std::move(out), [passes, q, k, v, sink_row](const Matrix64& y, const Matrix64& d) {
    const AttentionProblem& p = passes->problem;
    // Gradients of scores are differences from rowsum(dout out), of out as it was rounded: where a query sees
    // one key, they are nothing but this rounding.
    ReferenceForward rounded = passes->forward;
    rounded.out = swap_middle(y.values, p.batch, p.q_len, p.q_heads);
    const ReferenceBackward backward =
        reference_backward(passes->inputs, rounded, swap_middle(d.values, p.batch, p.q_len, p.q_heads));
    add_to(q.gradient(), swap_middle(backward.dq, p.batch, p.q_heads, p.q_len));
    add_to(k.gradient(), swap_middle(backward.dk, p.batch, p.kv_heads, p.kv_len));
    add_to(v.gradient(), swap_middle(backward.dv, p.batch, p.kv_heads, p.kv_len));
    if (sink_row.empty()) return;
    for (std::int64_t i = 0; i < std::ssize(backward.row_dsink); ++i)
      sink_row.front().gradient().row(0)[i / p.q_len % p.q_heads] += backward.row_dsink[idx(i)];
  });
}

Variable convolve(Variable x, Variable weight, std::vector<std::int64_t> begins) {
  // term(the result's row, the row that it sees, the weight's column)
  const std::int64_t reach = weight.columns() - 1;
  const auto for_each_term = [reach](const std::vector<std::int64_t>& begins_of, const auto& term) {
    for (std::int64_t i = 0; i < std::ssize(begins_of); ++i) {
      for (std::int64_t seen = std::max(begins_of[idx(i)], i - reach); seen <= i; ++seen)
        term(i, seen, reach - (i - seen));
    }
  };
  Matrix64 out(x.rows(), x.columns());
  for_each_term(begins, [&](std::int64_t i, std::int64_t seen, std::int64_t j) {
    for (std::int64_t c = 0; c < x.columns(); ++c)
      out.row(i)[c] += weight.value().row(c)[j] * x.value().row(seen)[c];
  });
  return x.tape().record(std::move(out), [x, weight, for_each_term, begins = std::move(begins)](
                                             const Matrix64&, const Matrix64& d) {
    for_each_term(begins, [&](std::int64_t i, std::int64_t seen, std::int64_t j) {
      for (std::int64_t c = 0; c < x.columns(); ++c) {
        x.gradient().row(seen)[c] += weight.value().row(c)[j] * d.row(i)[c];
        weight.gradient().row(c)[j] += x.value().row(seen)[c] * d.row(i)[c];
      }
    });
  });
}

Variable recurrence(const RecurrenceProblem& problem, const RecurrenceVariables& of) {
  const auto inputs = [of](const RecurrenceProblem& p) {
    return RecurrenceInputs{p,
                            of.q.value().values,
                            of.k.value().values,
                            of.v.value().values,
                            of.log_decay.value().values,
                            of.beta.value().values};
  };
  Matrix64 out(of.v.rows(), of.v.columns());
  out.values = reference_recurrence(inputs(problem)).out;
  return of.q.tape().record(std::move(out), [problem, of, inputs](const Matrix64&, const Matrix64& d) {
    const RecurrenceGradients gradients = reference_recurrence_gradients(inputs(problem), d.values);
    add_to(of.q.gradient(), gradients.dq);
    add_to(of.k.gradient(), gradients.dk);
    add_to(of.v.gradient(), gradients.dv);
    add_to(of.log_decay.gradient(), gradients.dlog_decay);
    add_to(of.beta.gradient(), gradients.dbeta);
  });
}

}  // namespace cp::sim
