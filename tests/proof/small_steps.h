// A small dense model, and steps of it, to be proved.
#pragma once

#include <cstdint>
#include <string>

#include "sim/proof/step/scale_down.h"

namespace cp::testing {

inline constexpr std::int64_t kOddLength = 29;

// Two kv heads, so that tp=4 has them twice.
inline Transformer dense_model() {
  Transformer model;
  model.name = "small", model.hidden = 32, model.layers = 4, model.q_heads = 4, model.kv_heads = 2;
  model.head_dim = 8, model.intermediate = 44, model.vocab = 83;
  return model;
}

// Each token takes two of four experts.
inline Transformer model_of_experts() {
  Transformer model = dense_model();
  model.experts = Experts{4, 2, 24, 0};
  return model;
}

// A router as DeepSeek-V3's, which corrects the scores that it chooses by.
inline Transformer model_that_corrects_scores() {
  Transformer model = dense_model();
  model.experts = Experts{8, 2, 24, 12}, model.experts->corrects_scores = true;
  model.numerics.router = {true, 4, 2, true, 2.5, 1};
  return model;
}

inline StepRequest request_of(const Transformer& model, const std::string& layout) {
  return sim::proof_request(model, parse_parallel_layout(layout), {kOddLength});
}

}  // namespace cp::testing
