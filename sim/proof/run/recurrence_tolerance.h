// Says how far the results of a recurrent layer may be from those of one device in float64, whatever the
// strategy: a bound for each row of each tensor, from the norms of what the row works with.
//
// Roundings are taken as independent errors of mean 0, each of at most one unit roundoff of what is rounded,
// as attention's are (attention_tolerance.h): their squares add up, and a result is off by no more than
// G = 4 times the root of that sum, but for a probability of 2 exp(-8) if every rounding is as bad as can be
// (Hoeffding's inequality, which Pinelis 1994 has for vectors). The rows of v and dout must have random
// signs, as those of RecurrenceTestData have: so what a row's columns add to a sum over them adds up by its
// squares, too. It is of first order: products of errors are left out. A sum of n products is taken to round
// n times, in whatever order it is made, each time by its largest possible size.
//
// Column j of a state [key_dim, value_dim] takes in value j of each row and never meets another column. So
// errors are followed by column, as 2-norms of vectors of key_dim. Of a row and a column, in what follows
//   u = 2^-24; d = key_dim, m = value_dim; g the value heads that share a key head
//   a = exp(log_decay), b = |beta|; |q|, |k| norms; scale the output's
//   c      b |k|^2 with delta, 0 with decay
//   eta    max(1, |1 - beta |k|^2|) with delta, 1 with decay: the norm of what the row's erasing does to a
//          column, which is more than 1 where beta |k|^2 > 2
//   rho    a eta: the norm of the row's transition
//   s, p   norms of the state's column behind the row, and of a times the one before it
//   w      what the row writes, but for beta (recurrence_reference.h)
//   h      the norm of the column of the gradient of the state behind the row, this row's output included
//   z      k times that column: the gradient of beta w
//
// The state. E is the error of s, and E' that behind the row before; here and below all that stands under a
// square is one source of errors:
//   E^2   = rho^2 E'^2 + u^2 ((5 eta p)^2 + d (c p)^2 + (3 b |k| w)^2 + s^2)
// a is within 2 ulp, which are 4u, and the product with it rounds once; erasing acts on that error too. The
// sum k^T p has d roundings of u |k| p, and is written with b k. The difference w, the product with beta and
// that with k round once each, and so does the sum s. Of these results the later formulas need
//   E_p^2 = a^2 E'^2 + (5u p)^2
//   E_w^2 = |k|^2 E_p^2 + u^2 (d (|k| p)^2 + w^2) with delta, 0 with decay: there w is v
//
// The gradient of the state. F is the error of h, and F' that of the gradient by later rows alone:
//   F^2   = F'^2 + u^2 ((3 |scale| |q| |dout|)^2 + h^2)    scale as f32, two products, the sum
//   F'^2 of the row before = rho^2 F^2 + u^2 h^2 ((6 rho)^2 + (d + 4) (a c)^2)
// since z has d roundings of u |k| h and rounds twice more, times beta and times k; then come the sum, and
// the product with a as above.
//   F_z^2 = |k|^2 F^2 + d (u |k| h)^2
//   F_v^2 = b^2 (F_z^2 + (u z)^2)
//   F_p^2 = eta^2 F^2 + u^2 h^2 ((d + 4) c^2 + eta^2)      of the gradient of p, which is at most eta h
//
// The results, over the columns j; ||x|| is the norm of a quantity over all columns, by which a sum over
// columns rounds, m times or more often:
//   out         (scale |q|)^2 (E^2 + (d + 4) (u s)^2)      of the largest column: d roundings of the sum, the
//                                                          scale as f32 and the product with it
//   dv          F_v^2                                      of the largest column
//   dbeta       sum of (F_z w)^2 + (z E_w)^2; m (u ||z|| ||w||)^2
//   dlog_decay  sum of (F_p p)^2 + (eta h E_p)^2; (m + d) (u eta ||h|| ||p||)^2
//   dq          scale^2 times, of the value heads of a key head, the sum of dout^2 (E_p^2 + (b |k| E_w)^2);
//               (m + 16 + 2 g) (u ||dout|| ||p + b |k| w||)^2: kernels may take S' = P + k (beta w)^T or its
//               two parts, each a sum over columns; beta w, the scale and the product with k round at most 4
//               times together, and 2 g parts are added up
//   dk          of the value heads, the sum of b^2 ((F w)^2 + (h E_w)^2); (m + 9 + 2 g) (u b ||h|| ||w||)^2;
//               and with delta the sum of (p F_v)^2 + (b z E_p)^2; (m + 9 + 2 g) (u b ||p|| ||z||)^2
//
// More than one rank. Then a state may come in from a scan over chunks of the sequence, which are at most two
// of each document for each rank: C is twice the ranks, or the rows of the document if they are fewer. With D
// as the largest norm that a column has behind any earlier row of the document, times the rho of the rows
// since, or its norm here if that is larger:
//   - The rows of a chunk alone make a state from zeros, which is the whole state less what the transition
//     makes of the one that comes in. That is at most D. So in E the norms p and w stand for p + a D' and,
//     with delta, w + |k| a D', with D' as that behind the row before, and s for s + D; and in F and F' h is
//     h + D, with D of the gradient by later rows.
//   - A transition T [n, n], n = d with delta and 1 with decay, goes through the rows as n columns do that
//     are written nothing to. First order sees only its error times the true state that comes in to the
//     chunk, through whichever products of transitions a scan takes that. The exponential's error is a factor
//     of the whole matrix. All others, and those of products of matrices below, are different in each column,
//     and so n columns, each times an element of the state, err as one does that is times the state's norm. A
//     row adds to E^2
//       (u D)^2 (6^2 + (d + 4) (c / eta)^2) with delta     product and sum, k^T p and two products
//       (5u D)^2 with decay                                T may be a product of the a, each with its error
//   - At most C - 1 products of transitions, and at most C - 1 joins of a state, make one incoming state.
//     What they multiply belongs to rows that follow one another, so it is at most 2 D. A sum of n products
//     has n roundings of u |T_i| |x|, which over all rows i of a matrix, whose columns are at most 1, are n^2
//     of u |x|; and the sum of a join rounds once. So wherever E is used, its square is larger by
//       (C - 1) (2 n^2 + 1) (2 u D)^2
// The gradient has the same with its own D, from the last row to the first. What is kept for the backward
// pass is f32, and rounds no further.
//
// Results of 16 bits are rounded to their dtype at the end. Numbers below 2^-126, which a device may take as
// 0, are no part of this: where inputs have sizes near 1, 2^26 of them are together less than 2^-100, which
// every result has in addition.
//
// What happens is less, since roundings are seldom as large as they can be: of 300 rows of 16 x 8 in f32 the
// largest error of a tensor is 1/20 to 1/200 of its bound.
#pragma once

#include "sim/proof/run/recurrence_test_data.h"
#include "sim/proof/run/tensor_tolerance.h"

namespace cp::sim {

// Rows are [batch, seq_len, heads], and in dlog_decay and dbeta one number each.
struct RecurrenceTolerances {
  TensorTolerance out, dq, dk, dv, dlog_decay, dbeta;  // gradients: empty if not asked for
};

// The tolerances of the results of any strategy on so many ranks.
RecurrenceTolerances recurrence_tolerances(const RecurrenceTestData& data, int ranks, bool backward);

}  // namespace cp::sim
