// Attention by the tiled kernels against the definition, each result within the roundings that it may have.
// Inputs are multiples of 1/64 below 1, so that they and their products of up to 128 terms are exact; what is
// left are the roundings that the tolerances count. Failures are GoogleTest's.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/kernels/tiled_attention.h"
#include "tests/kernels/attention_memory.h"

namespace cp::testing::tiles {

using Kind = MaskSlice::Kind;
using Values = std::vector<double>;

inline constexpr double kHalfUlp = 0x1p-24;  // a rounding to f32
inline constexpr double kExactScale = 0.25;  // a power of two: scores are exact

struct Problem {
  AttentionShape shape;
  std::vector<MaskSlice> slices;
};

AttentionInputs inputs_of(const Problem& problem);
std::vector<MaskSlice> one_slice(const AttentionShape& shape, Kind kind, std::int64_t diagonal = 0,
                                 std::int64_t window = 0);

// What a problem should give, and how far from it each result may lie.
struct Expected {
  AttentionOutputs forward;
  AttentionGradients gradients;
  Values dout;
  Values out_tolerance, lse_tolerance, dq_tolerance, dk_tolerance, dv_tolerance;
};
Expected expected_of(const AttentionInputs& inputs);

// How the tensors lie in memory; results in f32 whatever the inputs, and in the inputs' dtype.
struct Form {
  DType dtype = DType::f32, out_dtype = DType::f32;
  Order order = Order::bshd;
};

// By the kernels of one instruction set.
void check_forward(const AttentionInputs& inputs, const std::vector<MaskSlice>& slices,
                   const Expected& expected, const Form& form, const TileKernels& tiles);
void check_backward(const AttentionInputs& inputs, const std::vector<MaskSlice>& slices,
                    const Expected& expected, const Form& form, const TileKernels& tiles);
// By those of all.
void check(const Problem& problem, const std::vector<Form>& forms = {Form{}});

}  // namespace cp::testing::tiles
