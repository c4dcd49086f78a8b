// RecurrenceProblem says what a recurrent layer computes, and nothing about the ranks that compute it: linear
// attention whose memory of the past is a state of one size, however long the past is (Mamba-2, gated delta
// net; RecurrenceRule has the formulas).
//
// Global tensors are q, k [batch, seq_len, key_heads, key_dim], v, out [batch, seq_len, value_heads,
// value_dim], and log_decay, beta [batch, seq_len, value_heads], f32. Value head h uses key head
// h / (value_heads / key_heads). The state is zeros where a document begins; or, in serving, a sequence goes
// on from a cached state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"
#include "shared/plan/plan.h"

namespace cp {

struct RecurrenceProblem {
  RecurrenceRule rule = RecurrenceRule::delta;
  std::int64_t batch = 1, seq_len = 0;
  std::int64_t key_heads = 1, value_heads = 1;  // key_heads divides value_heads
  std::int64_t key_dim = 64, value_dim = 64;
  DType dtype = DType::f32;     // of q, k, v and out
  std::optional<double> scale;  // of the output; unset: 1/sqrt(key_dim)
  // Packed documents, of all batch entries alike: document d has the rows [cu_seqlens[d], cu_seqlens[d+1]).
  // The list begins with 0, does not descend, and ends with seq_len. Empty: there is one document.
  std::vector<std::int64_t> cu_seqlens;
  // Serving: the state before row 0, [batch, value_heads, key_dim, value_dim] in f32, was cached behind the
  // rows before (zeros if there were none), and that behind the last row is cached in its place. The sequence
  // is one document then, and there is no backward pass.
  bool cached_state = false;
  bool operator==(const RecurrenceProblem&) const = default;

  double output_scale() const;
  // The rows at which documents begin, ascending: 0 first, empty documents left out.
  std::vector<std::int64_t> document_starts() const;
  // The elements of one row of a transition: 1 for decay, key_dim for delta.
  std::int64_t transition_dim() const { return rule == RecurrenceRule::decay ? 1 : key_dim; }
  // The elements of one chunk's state, and of its transition, in all batch entries and heads.
  std::int64_t state_numel() const { return batch * value_heads * key_dim * value_dim; }
  std::int64_t transition_numel() const { return batch * value_heads * transition_dim() * transition_dim(); }
};

std::string_view name(RecurrenceRule rule);                   // "decay", "delta"
RecurrenceRule parse_recurrence_rule(std::string_view text);  // throws InvalidInput that names the nearest

// Throws InvalidInput if the problem makes no sense: sizes below 1, key_heads that do not
// divide value_heads, a dtype that is not floating, a scale that is no number, documents that do not cover
// the sequence, tensors of 2^63 bytes or more.
void validate_problem(const RecurrenceProblem& problem);

// A text for people: "delta seq 4096, batch 1, heads 16/32, dims 128/128, bf16, 3 documents".
std::string to_string(const RecurrenceProblem& problem);
Hasher& hash(Hasher& hasher, const RecurrenceProblem& problem);

}  // namespace cp
