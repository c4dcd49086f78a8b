// Workload: what a model is to do, whatever the GPUs: train on sequences, read prompts, or write tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"

namespace cp {

enum class Phase : std::uint8_t { training, prefill, decode };
std::string_view name(Phase phase);
Phase parse_phase(std::string_view text);  // throws InvalidInput that lists them

// What the optimizer keeps for each parameter, beside the f32 parameter itself.
struct Optimizer {
  std::string name = "adamw";  // adamw, adamw_16 (states in bf16), sgd (no state), sgd_momentum
  int states = 2;              // tensors as large as the parameters
  DType state_dtype = DType::f32;
  bool offload = false;                         // states and f32 parameters lie in host memory
  bool is_adam() const { return states == 2; }  // it keeps both moments
  bool operator==(const Optimizer&) const = default;
};
// "adamw", "adamw:offload": throws InvalidInput that lists them.
Optimizer parse_optimizer(std::string_view text);
std::string to_string(const Optimizer& optimizer);

struct Workload {
  Phase phase = Phase::training;
  std::int64_t seq_len = 0;  // of each sequence, in tokens; decode: cached plus new
  // Sequences in one step, on all replicas together; serving: requests served at once.
  std::int64_t global_batch = 1;
  // Serving: tokens that the cache has of each request before this step. Prefill reads the seq_len - cached
  // last ones; decode writes one token after `cached`, new_tokens times.
  std::int64_t cached = 0, new_tokens = 0;

  DType dtype = DType::bf16;          // of activations, products and travelling parameters
  DType kv_dtype = DType::bf16;       // of the cache
  DType gradient_dtype = DType::f32;  // of gradients that are added up and reduced
  Optimizer optimizer;
  // Tokens of the busiest expert over their mean, >= 1: the capacity that all are given.
  double expert_imbalance = 1;
  bool operator==(const Workload&) const = default;

  std::int64_t tokens() const { return seq_len * global_batch; }  // of a training step
};

// Throws InvalidInput that names each field at fault, its value and what is allowed.
void validate_workload(const Workload& workload);

Hasher& hash(Hasher& hasher, const Workload& workload);

}  // namespace cp
