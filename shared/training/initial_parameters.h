// What parameters begin with, if they are not read from files.
//
// An element is a function of the seed, of its tensor's name and of its place in it: every rank of every
// layout makes its own, and all layouts begin with the same model.
#pragma once

#include <cstdint>
#include <span>

#include "shared/transformer/model.h"
#include "shared/transformer/tensor_places.h"

namespace cp {

// Matrices are normal with the deviation 0.02 of GPT-2, which is Hugging Face's initializer_range, those that
// add to the residual stream (o_proj, down_proj) with 0.02 / sqrt(2 layers), as GPT-2 has them (Radford et
// al. 2019, section 2.3). Weights of norms are 1, or 0 where the model adds 1; biases, sinks and
// what routers add to their scores are 0. Recurrences begin as mamba_ssm's Mamba-2 does, but for matrices and
// biases: A_log, dt_bias, D and the convolution.
class InitialParameters {
 public:
  InitialParameters(const Transformer& model, std::uint64_t seed);

  // Values of StepBuffers; states of the optimizer are zeros.
  void operator()(int role, const TensorRun& run, std::span<double> values) const;

 private:
  double norm_, deviation_ = 0.02, residual_deviation_;
  std::int64_t taps_;  // of convolutions
  std::uint64_t seed_;
};

}  // namespace cp
