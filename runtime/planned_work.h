// How long the kernels of a plan may take on a GPU, at the worst. Whoever waits in a collective for a rank
// that computes honestly waits for that long and is not impatient.
#pragma once

#include <chrono>

#include "shared/plan/plan.h"

namespace cp::runtime {

// Rates below which no GPU that plans are made for falls. They are a third to a quarter of what its data
// sheet says of the slowest one (NVIDIA's L4: 30 Tflop/s of f32, 121 of bf16, 300 GB/s), or less, since a
// rate that is too low only makes a silent peer be found later.
//   products      f32 without tensor cores: the project's own kernel reaches a sixth of 30 Tflop/s.
//   exact         attention by the project's kernels: what they reached at the least before they used tensor
//                 cores, estimated at 3 to 8 Tflop/s; small pieces fill few of their tiles.
//   fused         attention by cuDNN: a sixth of 121 Tflop/s, for rows and heads that fill the GPU badly.
//   memory        bytes of operands, read or written: a third of 300 GB/s, for strided ones.
//   launch        a step that does next to nothing: ten times the some 10 us of its launch and its events.
struct SlowestRates {
  static constexpr double kProductsFlops = 5e12;
  static constexpr double kExactFlops = 5e12;
  static constexpr double kFusedFlops = 20e12;
  static constexpr double kMemoryBytes = 100e9;
  static constexpr double kLaunchSeconds = 100e-6;
};

// The time of all kernel steps of the plan, one after another, in whole milliseconds. 128 Ki
// tokens of causal attention with 32 heads of 128 in f32 take 56 s here: each slice counts as if none of its
// pairs were masked, which is twice what a causal one has.
//
// A Repeat that has a collective counts as one iteration, because its ranks meet in each. Two meetings of a
// group are then never further apart than this, also from the end of one run to the next one.
std::chrono::milliseconds planned_time(const Plan& plan);

}  // namespace cp::runtime
