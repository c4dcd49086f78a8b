// AttentionSharding: which rows and heads of each tensor every cp rank holds, at home and where it computes.
//
// Home is how the model keeps its activations: all heads of some rows. The ring axis splits the sequence
// first, by the balance; the Ulysses axis then splits what each ring index got, evenly. Where a rank computes
// it holds the rows of its whole Ulysses group and its share of the heads; with head_tail_exchange, other
// query rows too.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/context_parallel/strategy.h"
#include "shared/mesh/mesh.h"
#include "shared/placement/layout.h"

namespace cp {

// All batches of some rows, in local order, and of the heads [head_begin, head_end).
struct TensorPart {
  IndexSet rows;
  std::int64_t head_begin = 0, head_end = 0;
  std::int64_t num_rows() const { return size(rows); }
  std::int64_t num_heads() const { return head_end - head_begin; }
  bool operator==(const TensorPart&) const = default;
};

// A piece of the heads that a rank computes on, counted from its first query and kv head: [begin, end).
struct HeadPiece {
  std::int64_t q_begin = 0, q_end = 0, kv_begin = 0, kv_end = 0;
};

class AttentionSharding {
 public:
  // The strategy must be legal for the problem on `cp` ranks (refuse()).
  AttentionSharding(const AttentionProblem& problem, int cp, const Strategy& strategy);

  int cp_size() const { return ring_size_ * ulysses_degree_; }
  int ring_size() const { return ring_size_; }
  int ulysses_degree() const { return ulysses_degree_; }

  // Cp ranks are numbered 0 .. cp_size-1 here (`index`), positions in the list of the ranks.
  int ring_index(int index) const;
  int ulysses_index(int index) const;
  int index_at(int ring_index, int ulysses_index) const;

  // q, out, dout, dq at home; k, v, dk, dv at home.
  TensorPart home_q(int index) const;
  TensorPart home_kv(int index) const;
  // Where it computes: q, out, lse, dout, dq; k, v, dk, dv. The rows come in the order in which they arrive
  // (by Ulysses index), heads are the query heads of the Ulysses index and exactly the kv heads that they
  // use, so that several ranks may hold one kv head.
  TensorPart compute_q(int index) const;
  TensorPart compute_kv(int index) const;
  // The same heads in as many pieces as the strategy has: whole kv heads, as evenly as they go, each with its
  // query heads.
  std::vector<HeadPiece> pieces(int index) const;

 private:
  // Which rows a ring index computes or keeps, by ring index: the concatenation of its Ulysses group's rows.
  int ring_size_, ulysses_degree_, pieces_;
  bool ulysses_inner_;
  std::int64_t q_heads_, kv_heads_;
  std::vector<IndexSet> home_q_, home_kv_;        // by index
  std::vector<IndexSet> compute_q_, compute_kv_;  // by ring index
};

// The home of a tensor as a layout, so that tensors can be redistributed to it and from it. Its shape is in
// the problem's format ([batch, seq, heads, dim] in bshd), and its mesh has the cp ranks in the order of
// `ranks`. `is_query` asks for the home of q, out, dq and so on, else it is that of k, v, dk and dv. `dim` is
// the size of the last dimension: head_dim or v_head_dim.
Layout home_layout(const AttentionProblem& problem, const std::vector<Rank>& ranks, const Strategy& strategy,
                   bool is_query, std::int64_t dim);

}  // namespace cp
