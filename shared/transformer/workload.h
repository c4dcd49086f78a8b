// A Workload says what a model is to do in one step, whatever GPUs do it: train on sequences, read prompts
// (prefill), or write tokens (decode).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"

namespace cp {

enum class Phase : std::uint8_t { training, prefill, decode };
std::string_view name(Phase phase);
Phase parse_phase(std::string_view text);  // throws InvalidInput that lists the phases

// What the optimizer keeps for each parameter in addition to the f32 parameter itself.
struct Optimizer {
  std::string name = "adamw";  // adamw, adamw_16 (states in bf16), sgd (no states), sgd_momentum (one)
  int states = 2;              // tensors as large as the parameters: AdamW has two, the moments
  DType state_dtype = DType::f32;
  bool offload = false;  // states and f32 parameters are in host memory (ZeRO-Offload)
  // What the update computes with (shared/plan/row_operations.h, optimizer); the learning rate comes with
  // each step. beta1 is the momentum of SGD, and max_norm 0 clips nothing.
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, max_norm = 1;
  bool is_adam() const { return states == 2; }  // it keeps both moments
  bool operator==(const Optimizer&) const = default;
};
// Reads "adamw" or "adamw:offload". Throws InvalidInput that lists the optimizers.
Optimizer parse_optimizer(std::string_view text);
std::string to_string(const Optimizer& optimizer);

struct Workload {
  Phase phase = Phase::training;
  std::int64_t seq_len = 0;  // tokens of each sequence; of decode, the cached and the new ones together
  // The sequences of one step, over all replicas together. In serving: the requests that are served at once.
  std::int64_t global_batch = 1;
  // In serving, the tokens of each request that are in the cache before this step. Prefill reads the last
  // seq_len - cached tokens of each request; decode writes one token behind the cached ones, new_tokens
  // times.
  std::int64_t cached = 0, new_tokens = 0;
  // Of training, the packed documents of every sequence: document d has the rows [cu_seqlens[d],
  // cu_seqlens[d + 1]). The list begins with 0, ascends, and ends with seq_len; a pad is a document whose
  // labels are ignored. No layer looks from one document into another; positions go on counting through the
  // sequence. Empty: each sequence is one document.
  std::vector<std::int64_t> cu_seqlens;
  // The same where sequences have documents of their own: such a list for each sequence of the global batch;
  // cu_seqlens is empty then. Whatever reads a request without a rank and a micro-batch (memory, refusals)
  // reads the first micro-batch of the first replica.
  std::vector<std::vector<std::int64_t>> cu_seqlens_of_sequence;

  DType dtype = DType::bf16;          // of activations, matrix products and gathered parameters
  DType kv_dtype = DType::bf16;       // of cached keys and values
  DType gradient_dtype = DType::f32;  // in which gradients are added up and reduced over ranks
  Optimizer optimizer;
  // Tokens of the busiest expert divided by the mean over all experts; at least 1. Every rank reserves room
  // for, and computes, this many times the mean: the capacity of its experts.
  double expert_imbalance = 1;
  // Of training, the probability of a weight of attention to become 0 (context_parallel/problem.h, Dropout),
  // in all layers that have attention. Which ones do follows from the seed of the training and the step
  // (dropout_seed(), step_buffers.h), and from no layout.
  double attention_dropout = 0;
  bool operator==(const Workload&) const = default;

  bool has_documents() const { return !cu_seqlens.empty() || !cu_seqlens_of_sequence.empty(); }
  std::int64_t tokens() const { return seq_len * global_batch; }  // tokens of a training step
};

// The row behind the last one of the document that has the row, in a sequence of the global batch.
std::int64_t document_end(const Workload& workload, std::int64_t sequence, std::int64_t row);

// Throws InvalidInput that names every field at fault, its value, and what is allowed.
void validate_workload(const Workload& workload);

Hasher& hash(Hasher& hasher, const Workload& workload);

}  // namespace cp
