// How far the losses of one training may lie apart on two layouts, which make the same sums in other orders.
#pragma once

#include <cmath>
#include <cstdint>

namespace cp::testing {

// The learning rate and the warm-up that the constants below were measured with, and up to which they hold.
// Above, the small models of these tests become chaotic: at twice the rate the curves of one seed in eight
// part further than this allows, at six times as much all of them within 50 steps, whatever moved them first.
constexpr double kCurveLearningRate = 5e-4;
constexpr std::int64_t kCurveWarmup = 20;  // steps

// Relative to the loss of the step, which counts from 1. To first order, with r = 2^-24, the unit roundoff of
// f32:
//
// 1. Each step moves the parameters of two layouts apart by at most 3 r of themselves: either rounds them
// once,
//    which is 2 r; and their gradients, sums over some 96 tokens, are sqrt(96) 2 r apart, since roundings are
//    independent (Higham and Mary 2019), of which AdamW makes that share of a move by the learning rate, a
//    fortieth of the deviation 0.02 of parameters: less than r.
// 2. A move of all parameters by r, up or down at random, changes the loss k steps later by at most 0.2 k r.
//    This is measured: each parameter of the dense model was moved by a unit in its last place before the
//                      first
//    of 200 steps, for eight seeds. Losses changed by 0.2 r in 5 steps, 0.5 r in 29, 6 r in 99 and 29 r in 171,
//    the most of all seeds, and by no more than 0.17 k r.
// 3. What steps 1 .. t - 1 add is independent too, so that squares are added up:
//    3 r 0.2 sqrt(1 + 4 + ... + (t - 1)^2) < 0.6 r sqrt(t^3 / 3).
// 4. The loss itself is computed from sums of 48 products, the width of these models: sqrt(48) 2 r.
//
// Between layouts losses were apart by at most 0.06 of that, for 28 seeds.
inline double curve_tolerance(std::int64_t step) {
  const double r = std::ldexp(1.0, -24), t = static_cast<double>(step);
  return r * (14 + 0.6 * std::sqrt(t * t * t / 3));
}

}  // namespace cp::testing
