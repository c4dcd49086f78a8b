// What the layers of a model are made of, on a tape: each operation computes a new variable. They are written
// to be held against the formulas, and share no code with kernels and plans.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/recurrence/problem.h"
#include "sim/proof/reference/tape.h"

namespace cp::sim {

// ---- element by element ----

Variable add(Variable x, Variable y);
Variable multiply(Variable x, Variable y);
Variable multiply(Variable x, double factor);
Variable add(Variable x, double number);
// A vector with as many elements as x has columns: it is added to each row, or multiplied with it.
Variable add_to_rows(Variable x, Variable vector);
Variable multiply_rows(Variable x, Variable vector);
// A column, [rows, 1]: row i of x is multiplied with its element i.
Variable weigh_rows(Variable x, Variable column);

// A function of one number and its slope.
struct ScalarFunction {
  double (*at)(double);
  double (*slope)(double);
};
Variable map(Variable x, const ScalarFunction& function);
// Elements below `least` become it, and those above `most` become that; neither has a slope then.
Variable clamp(Variable x, double least, double most);
extern const ScalarFunction kSigmoid;      // 1 / (1 + exp(-x))
extern const ScalarFunction kSilu;         // x sigmoid(x)
extern const ScalarFunction kGeluTanh;     // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
extern const ScalarFunction kReluSquared;  // max(x, 0)^2
extern const ScalarFunction kRelu;         // max(x, 0)
extern const ScalarFunction kGelu;         // x/2 (1 + erf(x / sqrt(2)))
extern const ScalarFunction kQuickGelu;    // x sigmoid(1.702 x)
extern const ScalarFunction kTanh;
extern const ScalarFunction kSoftplus;  // log(1 + exp(x))
extern const ScalarFunction kMinusExp;  // -exp(x)

// ---- rows and columns ----

Variable linear(Variable x, Variable weight);  // x weight^T: the weight is [out, in], as in PyTorch's Linear
// Column j of the result is column columns[j] of x. A column may be taken several times, or never.
Variable take_columns(Variable x, std::vector<std::int64_t> columns);
Variable beside(Variable x, Variable y);  // [rows, columns of both]
// Row i of the result is row rows[i] of x.
Variable take_rows(Variable x, std::vector<std::int64_t> rows);
// The transpose: row i of x is added to row rows[i] of a result of `count` rows.
Variable add_up_rows(Variable x, std::vector<std::int64_t> rows, std::int64_t count);
// Row i of the result has the elements columns[i k] .. columns[i k + k - 1] of row i of x.
Variable take_elements(Variable x, std::vector<std::int64_t> columns, std::int64_t k);

// ---- norms and probabilities ----

// Each group of `width` neighbouring elements of a row is multiplied with 1 / sqrt(factor s + eps), where s
// is the sum of its squares: factor 1/width for an RMS norm, 1 for the Euclidean norm.
Variable normalize(Variable x, std::int64_t width, double factor, double eps);
Variable center(Variable x, std::int64_t width);  // each group less its mean
Variable softmax(Variable x);                     // of each row
Variable divide_by_row_sums(Variable x);          // each row
// Of each row -log softmax(logits)[label], or 0 where its label is negative, [rows, 1]. There is a label for
// each row.
Variable cross_entropy(Variable logits, std::vector<std::int64_t> labels);

// ---- along the sequence ----
// Rows are those of `sequences` one after the other, equally many of each.

// Rotary positions: of each head of `head_dim` elements, pair j of those from `first` on turns by the angle
// position x frequencies[j], and is multiplied with `size`. Elements behind the last pair stay.
struct Rotary {
  std::int64_t head_dim = 0, first = 0;
  std::vector<double> frequencies;
  // Pair j is elements 2j and 2j + 1 (the paper, DeepSeek), and else j and j + number of pairs (Llama).
  bool neighbours = false;
  double size = 1;
};
Variable rotate(Variable x, const Rotary& rotary, std::vector<std::int64_t> positions);

// What dropout asks for beside the problem: its seed, and the number of the first batch entry among all.
struct DropoutPlace {
  std::uint64_t seed = 0;
  std::int64_t first_batch = 0;
};
// Attention with the problem's mask, scale, cap, sinks and dropout: q [batch x q_len, q_heads x head_dim], k
// the same of kv_heads, v and the result with v_head_dim. `sinks`, [1, q_heads], is null unless the problem
// has them. It has no latent rows. Throws InvalidInput if OpenBLAS is not found.
Variable attention(const AttentionProblem& problem, Variable q, Variable k, Variable v, const Variable* sinks,
                   const DropoutPlace& place = {});

// A depthwise convolution: element c of row i becomes the sum over j of weight(c, j) times element c of row
// i - (weights of an element - 1) + j, where rows before the document's first one count as zeros. `begins` of
// each row is its document's first row.
Variable convolve(Variable x, Variable weight, std::vector<std::int64_t> begins);

// A recurrence over the rows of one sequence (problem.batch is 1): q, k [seq_len, key_heads x key_dim], v and
// the result [seq_len, value_heads x value_dim], log_decay and beta [seq_len, value_heads].
struct RecurrenceVariables {
  Variable q, k, v, log_decay, beta;
};
Variable recurrence(const RecurrenceProblem& problem, const RecurrenceVariables& of);

}  // namespace cp::sim
