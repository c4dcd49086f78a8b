// How far the losses of one training may lie apart on two layouts, which make the same sums in other orders.
#pragma once

#include <cmath>
#include <cstdint>

namespace cp::testing {

// The learning rate and the warm-up that the constants below were measured with, and up to which they hold.
// At three times as much the small models of these tests turn chaotic: curves part within 50 steps, whatever
// moved them first.
constexpr double kCurveLearningRate = 1e-3;
constexpr std::int64_t kCurveWarmup = 20;  // steps

// Relative to the loss of the step, which counts from 1. To first order, with r = 2^-24, the unit roundoff of
// f32:
//
// 1. Each step moves the parameters of two layouts apart by at most 3 r of themselves: either rounds them
// once,
//    which is 2 r; and their gradients, sums over some 96 tokens, are sqrt(96) 2 r apart, since roundings are
//    independent (Higham and Mary 2019), of which AdamW makes that share of a move by the learning rate, a
//    twentieth of the deviation 0.02 of parameters: less than r.
// 2. A move of all parameters by r, up or down at random, changes the loss k steps later by at most 0.3 k r.
//    This is measured: each parameter of a dense model and of one with experts was moved by a unit in its
//                      last
//    place, three times, and the training repeated. Before step 1 of 200, that changed losses by 0.2 r in 5
//    steps, 2 r in 29, 10 r in 69 and 38 r in 140, the most of all six; behind step 200 by less than 2 r.
// 3. What steps 1 .. t - 1 add is independent too, so that squares are added up:
//    3 r 0.3 sqrt(1 + 4 + ... + (t - 1)^2) < 0.9 r sqrt(t^3 / 3).
// 4. The loss itself is computed from sums of 48 products, the width of these models: sqrt(48) 2 r.
inline double curve_tolerance(std::int64_t step) {
  const double r = std::ldexp(1.0, -24), t = static_cast<double>(step);
  return r * (14 + 0.9 * std::sqrt(t * t * t / 3));
}

}  // namespace cp::testing
