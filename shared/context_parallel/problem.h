// AttentionProblem: what is to be computed, whatever the ranks: scaled dot-product attention of some queries
// against some keys, and which keys each query may see.
//
// Global tensors are q [batch, q_len, q_heads, head_dim], k [batch, kv_len, kv_heads, head_dim],
// v [batch, kv_len, kv_heads, v_head_dim], out [batch, q_len, q_heads, v_head_dim], and lse
// [batch, q_heads, q_len], f32, the natural logarithm of each row's sum of exponentials. Query head h uses kv
// head h / (q_heads / kv_heads). A row without an allowed key has out 0 and lse -inf.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"
#include "shared/base/types.h"
#include "shared/context_parallel/kernel_options.h"

namespace cp {

// Order of the dimensions in the memory of q, k, v, out and their gradients, at home.
enum class TensorFormat : std::uint8_t {
  bshd,  // [batch, seq, heads, head_dim]
  bnsd,  // [batch, heads, seq, head_dim]
  sbhd,  // [seq, batch, heads, head_dim] (Megatron-LM)
};
std::string_view name(TensorFormat format);  // "bshd"
// Which dimension of such a tensor is the sequence: 1, 2 or 0.
int seq_dim(TensorFormat format);
TensorFormat parse_tensor_format(std::string_view text);  // throws InvalidInput that lists them

struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t q_heads = 1, kv_heads = 1;  // kv_heads divides q_heads
  std::int64_t head_dim = 64, v_head_dim = 64;
  DType dtype = DType::f32;
  TensorFormat format = TensorFormat::bshd;
  std::optional<double> softmax_scale;  // unset: 1/sqrt(head_dim)

  // The mask. Query i stands at position i + query_offset among the keys (unset: kv_len - q_len, which aligns
  // the ends: bottom-right). With p that position, key j is allowed when all of these hold:
  bool causal = false;                 // j <= p
  std::optional<std::int64_t> window;  // p - window < j, and without causal j < p + window
  // Packed documents: p and j in one [cu_seqlens[d], cu_seqlens[d+1]). Begins with 0, does not descend. What
  // lies at or behind the last entry is padding, which no query sees and which sees nothing. Empty: no
  // documents.
  std::vector<std::int64_t> cu_seqlens;
  // Where batch entries have documents of their own: such a list for each entry, and cu_seqlens is empty.
  std::vector<std::vector<std::int64_t>> cu_seqlens_of_entry;
  std::optional<std::int64_t> query_offset;

  // What is asked for that no kernel has, with the value as text ("" where it has none): refused by name.
  std::map<KernelOption, std::string> options;

  bool operator==(const AttentionProblem&) const = default;

  double scale() const;
  std::int64_t offset() const { return query_offset.value_or(kv_len - q_len); }
  std::int64_t heads_per_kv() const { return q_heads / kv_heads; }
  bool has_documents() const { return !cu_seqlens.empty() || !cu_seqlens_of_entry.empty(); }
  bool shares_mask() const { return cu_seqlens_of_entry.empty(); }  // all batch entries have one
};

// Neighbouring batch entries that share their documents, and so their mask: the problem of these alone, which has cu_seqlens.
struct MaskGroup {
  std::int64_t first = 0;  // batch entry
  AttentionProblem problem;
};
// All batch entries, in order, in as few groups as can be.
std::vector<MaskGroup> mask_groups(const AttentionProblem& problem);

// Documents as text: "0/10/50", for each batch entry "0/10/50;0/20/50"; empty: none.
std::string documents_text(const AttentionProblem& problem);
// Sets them. Throws InvalidInput for what is no such text; whether they fit the problem is validate_problem()'s question.
void parse_documents(std::string_view text, AttentionProblem& problem);

// Throws InvalidInput for sizes below 1 (lengths: below 0), kv_heads that do not divide q_heads, a window below
// 1, a scale that is not finite, cu_seqlens that do not begin with 0, descend, or end beyond kv_len, documents of other than all batch
// entries, or of all together too. What no kernel can do is legality's business (strategy.h).
void validate_problem(const AttentionProblem& problem);

// Keys [begin, end): the mask is one such range for each query, and both ends never descend from one query to
// the next, save that a query without keys has the empty range {0, 0}. All masks are derived from it. Of a problem whose batch entries
// share their mask (mask_groups() gives such).
struct KeyInterval {
  std::int64_t begin = 0, end = 0;
  bool operator==(const KeyInterval&) const = default;
};
KeyInterval allowed_keys(const AttentionProblem& problem, std::int64_t query);

// One line: "1 x 4096 x 8 heads (2 kv) x 64 f32, causal".
std::string to_string(const AttentionProblem& problem);
Hasher& hash(Hasher& hasher, const AttentionProblem& problem);

}  // namespace cp
