#include "shared/transformer/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/complaints.h"

namespace cp {
namespace {

constexpr std::array kPhases = {Phase::training, Phase::prefill, Phase::decode};
constexpr std::string_view kOffload = ":offload";
// Chosen: about 4 * 10^12 tokens, far above the 16 * 10^6 of the largest steps of Llama 3 405B, and so low
// that tokens times the bytes of a row of activations (up to 2^20) fit into 64 bits.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 42;

std::vector<Optimizer> optimizers() {
  return {{"adamw", 2, DType::f32, false},
          {"adamw_16", 2, DType::bf16, false},
          {"sgd", 0, DType::f32, false},
          {"sgd_momentum", 1, DType::f32, false}};
}

void require_floating(std::string_view field, DType dtype, detail::Complaints& complaints) {
  complaints.require(is_floating(dtype),
                     str(field, "=", name(dtype), " is not a floating type; use f32, f16 or bf16"));
}

void check_cache(const Workload& w, detail::Complaints& complaints) {
  switch (w.phase) {
    case Phase::training:
      complaints.require(w.cached == 0,
                         str("cached=", w.cached, " must be 0 in training, which has no cache"));
      complaints.require(w.new_tokens == 0, str("new_tokens=", w.new_tokens, " must be 0 in training"));
      break;
    case Phase::prefill:
      complaints.require(w.cached >= 0 && w.cached < w.seq_len,
                         str("cached=", w.cached, " must be at least 0 and below seq_len=", w.seq_len,
                             ": prefill reads the tokens behind it"));
      complaints.require(w.new_tokens == 0, str("new_tokens=", w.new_tokens, " must be 0 in prefill"));
      break;
    case Phase::decode:
      complaints.require(w.cached >= 0, str("cached=", w.cached, " must be at least 0"));
      complaints.require(w.new_tokens >= 1,
                         str("new_tokens=", w.new_tokens, " must be at least 1 in decode"));
      complaints.require(
          w.cached < 0 || w.new_tokens < 1 || (w.seq_len >= w.cached && w.seq_len - w.cached == w.new_tokens),
          str("seq_len=", w.seq_len, " must be cached + new_tokens=", w.cached, "+", w.new_tokens,
              " in decode"));
      break;
  }
}

void check_list(const Workload& w, const std::vector<std::int64_t>& ends, detail::Complaints& complaints) {
  complaints.require(w.phase == Phase::training,
                     str("cu_seqlens=", join(ends, "/"), " are documents of training; ", name(w.phase),
                         " has one sequence for each request"));
  const bool ascends =
      std::adjacent_find(ends.begin(), ends.end(), std::greater_equal<std::int64_t>()) == ends.end();
  complaints.require(ends.size() > 1 && ends.front() == 0 && ends.back() == w.seq_len && ascends,
                     str("cu_seqlens=", join(ends, "/"), " must begin with 0, ascend, and end with seq_len=",
                         w.seq_len, "; let a pad be a document of its own"));
}

void check_documents(const Workload& w, detail::Complaints& complaints) {
  if (!w.cu_seqlens.empty()) check_list(w, w.cu_seqlens, complaints);
  if (w.cu_seqlens_of_sequence.empty()) return;
  complaints.require(w.cu_seqlens.empty(), "cu_seqlens and cu_seqlens_of_sequence are both given; give one");
  complaints.require(std::ssize(w.cu_seqlens_of_sequence) == w.global_batch,
                     str("cu_seqlens_of_sequence has ", w.cu_seqlens_of_sequence.size(),
                         " lists for the global_batch=", w.global_batch, " sequences; give one for each"));
  for (const std::vector<std::int64_t>& ends : w.cu_seqlens_of_sequence) check_list(w, ends, complaints);
}

}  // namespace

std::string_view name(Phase phase) {
  switch (phase) {
    case Phase::training:
      return "training";
    case Phase::prefill:
      return "prefill";
    case Phase::decode:
      return "decode";
  }
  CP_INVARIANT(false, "phase ", static_cast<int>(phase));
}

Phase parse_phase(std::string_view text) {
  for (const Phase phase : kPhases) {
    if (name(phase) == text) return phase;
  }
  throw InvalidInput(str("unknown phase '", text, "'; use training, prefill or decode"));
}

Optimizer parse_optimizer(std::string_view text) {
  const bool offload = text.ends_with(kOffload);
  const std::string_view wanted = offload ? text.substr(0, text.size() - kOffload.size()) : text;
  std::vector<std::string> names;
  for (Optimizer& optimizer : optimizers()) {
    names.push_back(optimizer.name);
    if (optimizer.name != wanted) continue;
    optimizer.offload = offload;
    return optimizer;
  }
  throw InvalidInput(str("unknown optimizer '", text, "'; use one of ", join(names, ", "),
                         ", each with or without ", kOffload, ", which keeps its states in host memory"));
}

std::string to_string(const Optimizer& optimizer) {
  return str(optimizer.name, optimizer.offload ? kOffload : "");
}

std::int64_t document_end(const Workload& workload, std::int64_t sequence, std::int64_t row) {
  const std::vector<std::int64_t>& ends = workload.cu_seqlens_of_sequence.empty()
                                              ? workload.cu_seqlens
                                              : workload.cu_seqlens_of_sequence[idx(sequence)];
  return ends.empty() ? workload.seq_len : *std::upper_bound(ends.begin(), ends.end(), row);
}

void validate_workload(const Workload& w) {
  detail::Complaints complaints;
  complaints.require(w.seq_len >= 1, str("seq_len=", w.seq_len, " must be at least 1"));
  complaints.require(w.global_batch >= 1, str("global_batch=", w.global_batch, " must be at least 1"));
  complaints.require(w.seq_len < 1 || w.global_batch < 1 || w.global_batch <= kMaxTokens / w.seq_len,
                     str("seq_len=", w.seq_len, " times global_batch=", w.global_batch, " must be at most ",
                         kMaxTokens, " tokens"));
  check_cache(w, complaints);
  check_documents(w, complaints);
  require_floating("dtype", w.dtype, complaints);
  require_floating("kv_dtype", w.kv_dtype, complaints);
  require_floating("gradient_dtype", w.gradient_dtype, complaints);
  require_floating("optimizer.state_dtype", w.optimizer.state_dtype, complaints);
  complaints.require(w.optimizer.states >= 0 && w.optimizer.states <= 8,
                     str("optimizer.states=", w.optimizer.states, " must be at least 0 and at most 8"));
  complaints.require(std::isfinite(w.expert_imbalance) && w.expert_imbalance >= 1,
                     str("expert_imbalance=", w.expert_imbalance,
                         " must be at least 1: the busiest expert has the mean or more"));
  complaints.require(w.attention_dropout >= 0 && w.attention_dropout < 1,
                     str("attention_dropout=", w.attention_dropout,
                         " is not a probability below 1; use, for example, 0.1, or 0 for none"));
  complaints.require(
      !(w.attention_dropout > 0) || w.phase == Phase::training,
      str("attention_dropout=", w.attention_dropout, " is of training; ", name(w.phase), " drops nothing"));
  complaints.raise("workload");
}

Hasher& hash(Hasher& hasher, const Workload& w) {
  hasher.add(static_cast<int>(w.phase)).add(w.seq_len).add(w.global_batch).add(w.cached).add(w.new_tokens);
  hasher.add(static_cast<int>(w.dtype))
      .add(static_cast<int>(w.kv_dtype))
      .add(static_cast<int>(w.gradient_dtype));
  hasher.add(std::string_view(w.optimizer.name)).add(w.optimizer.states);
  hasher.add(static_cast<int>(w.optimizer.state_dtype)).add(w.optimizer.offload);
  if (const Optimizer usual; w.optimizer.beta1 != usual.beta1 || w.optimizer.beta2 != usual.beta2 ||
                             w.optimizer.eps != usual.eps || w.optimizer.decay != usual.decay ||
                             w.optimizer.max_norm != usual.max_norm) {
    hasher.add(w.optimizer.beta1).add(w.optimizer.beta2).add(w.optimizer.eps).add(w.optimizer.decay);
    hasher.add(w.optimizer.max_norm);
  }
  for (const std::int64_t end : w.cu_seqlens) hasher.add(end);
  for (const std::vector<std::int64_t>& ends : w.cu_seqlens_of_sequence) hasher.add_all(ends);
  // So that workloads without it keep their digests.
  if (w.attention_dropout != 0) hasher.add(std::string_view("dropout")).add(w.attention_dropout);
  return hasher.add(w.expert_imbalance);
}

}  // namespace cp
