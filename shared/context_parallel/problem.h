// AttentionProblem says what is to be computed, and nothing about the ranks that compute it: scaled
// dot-product attention of some queries against some keys, and which keys each query may see.
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

// Dropout of attention's weights, in training. A weight becomes 0 with this probability, and is divided by
// 1 - probability else; lse is that of all weights. Which ones become 0 is a function of a seed, the layer,
// the batch entry, the query head, the query and the key, all by their numbers in the global tensors
// (shared/kernels/philox.h). So it is the same for every strategy and every number of ranks. The seed is a
// value that each run is given (the buffer `seed`), so that one plan serves all steps of a training.
struct Dropout {
  double probability = 0;  // 0: no weight does
  std::int64_t layer = 0;
  // Of a problem that has some of all query heads, as a tensor-parallel rank's: the first one's number, and
  // how many there are. 0: all heads are the problem's.
  std::int64_t first_head = 0, all_heads = 0;
  // Behind the seed the buffer has two numbers more, which are added to those of the layer and of the batch
  // entries: one plan serves all layers and micro-batches.
  bool placed = false;
  bool operator==(const Dropout&) const = default;
};

// Keys and values that are made of latent rows (multi-head latent attention of DeepSeek-V2 and V3). Each key
// has a row [c, r] of rank + rope_dim elements, which all heads share: c is what keys and values are expanded
// from, and r the end of every head's key, already rotated. The weight kv_up [kv_heads * (nope + v_head_dim),
// rank] with nope = head_dim - rope_dim, which all ranks hold whole, has the rows of each head one after the
// other, those of its key before those of its value:
//   key of head h = [kv_up(h, first nope rows) c, r], value of head h = kv_up(h, last v_head_dim rows) c
// Absorbed, there is no weight: the queries were multiplied with the one of their keys before, [kv_up(h,
// first nope rows)^T q, rotated part of q], and the caller multiplies outputs with the one of the values. So
// all heads have one key, [c, r], and one value, c: kv_heads is 1, head_dim is rank + rope_dim, and
// v_head_dim is rank. It is how tokens are written (DeepSeek-V2), since a row is read and nothing expanded.
struct LatentShape {
  std::int64_t rank = 0;  // elements of c; 0: keys and values are given
  std::int64_t rope_dim = 0;
  bool absorbed = false;
  bool operator==(const LatentShape&) const = default;
  std::int64_t dim() const { return rank + rope_dim; }
};

struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t q_heads = 1, kv_heads = 1;  // kv_heads divides q_heads
  std::int64_t head_dim = 64, v_head_dim = 64;
  DType dtype = DType::f32;
  TensorFormat format = TensorFormat::bshd;
  std::optional<double> softmax_scale;  // unset: 1/sqrt(head_dim)
  // A cap of the scores: with the scale in it, a score s becomes softcap * tanh(s / softcap). 0: none.
  double softcap = 0;
  // Whether each query head has a sink: a learnt number, the score of one more key that every query sees and
  // whose value is 0 (gpt-oss). The rows' lse has it, too. A row without a key has out 0, and its head's sink
  // as lse.
  bool sinks = false;
  Dropout dropout;
  // Instead of k and v: latent [batch, kv_len, 1, rank + rope_dim], in the dtype, and kv_up, in the dtype,
  // unless absorbed.
  LatentShape latent;

  // The mask. Query i stands at position i + query_offset among the keys (unset: kv_len - q_len, which aligns
  // the ends: bottom-right). With p that position, key j is allowed when all of these hold:
  bool causal = false;                 // j <= p
  std::optional<std::int64_t> window;  // p - window < j, and without causal j < p + window
  // Positions are cut at the multiples of `chunk`, and p and j lie in one piece (Llama 4). Documents do not
  // move these cuts.
  std::optional<std::int64_t> chunk;
  // Packed documents: p and j lie in one [cu_seqlens[d], cu_seqlens[d+1]). The list begins with 0 and does
  // not descend. What lies at or behind its last entry is padding, which sees nothing and is seen by no
  // query. For example, {0, 10, 50} in a length of 64 is two documents of 10 and 40 tokens and 14 tokens of
  // padding. An empty list means that there are no documents.
  std::vector<std::int64_t> cu_seqlens;
  // Such a list for each batch entry, if the entries have documents of their own; cu_seqlens is empty then.
  std::vector<std::vector<std::int64_t>> cu_seqlens_of_entry;
  std::optional<std::int64_t> query_offset;

  // Features that other systems' kernels have and none here does, with the value as text ("" if there is
  // none). They are carried so that refuse() can refuse each by its name.
  std::map<KernelOption, std::string> options;

  bool operator==(const AttentionProblem&) const = default;

  double scale() const;
  bool drops() const { return dropout.probability != 0; }
  bool has_latent() const { return latent.rank != 0; }
  // Elements of a head's key that are expanded from latent rows.
  std::int64_t nope_dim() const { return head_dim - latent.rope_dim; }
  // Rows of kv_up for each head; 0 without the weight.
  std::int64_t up_rows() const { return latent.absorbed ? 0 : nope_dim() + v_head_dim; }
  std::int64_t offset() const { return query_offset.value_or(kv_len - q_len); }
  std::int64_t heads_per_kv() const { return q_heads / kv_heads; }
  bool has_documents() const { return !cu_seqlens.empty() || !cu_seqlens_of_entry.empty(); }
  // Whether queries see less than all keys that causality alone would show them.
  bool is_cut() const { return window || chunk || has_documents(); }
  bool shares_mask() const { return cu_seqlens_of_entry.empty(); }  // all batch entries have one
};

// Neighbouring batch entries that share their documents, and so their mask. `problem` is the problem of these
// entries alone, and has cu_seqlens.
struct MaskGroup {
  std::int64_t first = 0;  // batch entry
  AttentionProblem problem;
};
// Splits the batch into as few such groups as possible, in the order of the entries.
std::vector<MaskGroup> mask_groups(const AttentionProblem& problem);

// Documents as text: "0/10/50", for each batch entry "0/10/50;0/20/50"; empty: none.
std::string documents_text(const AttentionProblem& problem);
// Sets the problem's documents from such a text. Throws InvalidInput for any other text. It does not ask
// whether the documents fit the problem; validate_problem() does.
void parse_documents(std::string_view text, AttentionProblem& problem);

// Throws InvalidInput for sizes below 1 (lengths: below 0), for kv_heads that do not divide q_heads, for a
// window or a chunk below 1, for a scale that is not finite, for a softcap below 0, for a dropout that is no
// probability below 1 or that has more rows than its generator counts, for latent rows with a rotated part as
// long as a key, or with one and no rank, for absorbed queries of other sizes than the rows', and for
// cu_seqlens that do not begin with 0, that descend, or that end beyond kv_len. If batch entries have
// documents of their own, there must be a list for each entry, and cu_seqlens must be empty. Whether some
// kernel can compute the problem is another question, which refuse() of strategy.h answers.
void validate_problem(const AttentionProblem& problem);

// The keys [begin, end) that one query may see. Every mask here is one such range for each query, and all
// forms of a mask are derived from these ranges. Neither end descends from one query to the next, except that
// a query without keys has the empty range {0, 0}. The problem's batch entries must share their mask;
// mask_groups() gives such problems.
struct KeyInterval {
  std::int64_t begin = 0, end = 0;
  bool operator==(const KeyInterval&) const = default;
};
KeyInterval allowed_keys(const AttentionProblem& problem, std::int64_t query);

// One line: "1 x 4096 x 8 heads (2 kv) x 64 f32, causal".
std::string to_string(const AttentionProblem& problem);
Hasher& hash(Hasher& hasher, const AttentionProblem& problem);

}  // namespace cp
