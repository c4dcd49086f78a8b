// AttentionWriter is what all writers of attention plans share: tensors, streams, and kernel calls whose
// views are cut from the tensors. Internal to shared/context_parallel.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/context_parallel/attention_context.h"
#include "shared/context_parallel/part_pool.h"
#include "shared/context_parallel/team.h"
#include "shared/context_parallel/tensor.h"
#include "shared/plan/builder.h"

namespace cp::detail {

// The log-sum-exp of a row that no key reaches.
inline constexpr double kLseOfNothing = -std::numeric_limits<double>::infinity();

// The operands of attention, cut to the rows of the step. Where v is absent, k is latent rows, which the step
// expands; backward dk is then the gradient of the rows, and dv is absent.
struct ForwardOperands {
  Tensor q, k, v, out;
  RowStatistic lse;
};
// delta = rowsum(dout * out) of some queries. Exact kernels read it; fused ones compute their own from out.
struct RowDelta {
  Tensor out, dout;
  RowStatistic rows;  // buffer -1 until somebody needs it
  bool made = false;
};
class LatentKeys;
class PartialSum;
// Where a backward step writes a gradient.
struct Gradient {
  Tensor tensor;
  bool accumulate = false;    // add to what the tensor holds
  PartialSum* sum = nullptr;  // for a fused target: write a part of this sum instead

  bool is_wanted() const { return sum != nullptr || !tensor.is_absent(); }
};
struct BackwardOperands {
  Tensor q, k, v, dout;
  RowStatistic lse;
  RowDelta* delta = nullptr;
  Gradient dq, dk, dv;  // if both dk and dv are wanted, both accumulate or neither does
};

// Query heads of this rank, and the kv heads that serve them: each serves equally many of them.
struct HeadGroup {
  Range q, kv;
};

class AttentionWriter {
 public:
  AttentionWriter(const AttentionContext& context, AttentionPass pass, Rank self, const Target& target);
  ~AttentionWriter();

  const AttentionContext& context() const { return context_; }
  const AttentionProblem& problem() const { return context_.request.problem; }
  const Gradients& gradients() const { return context_.request.options.gradients; }
  Masks masks(const IndexSet& q_rows, const IndexSet& k_rows) const { return context_.masks(q_rows, k_rows); }
  const Strategy& strategy() const { return context_.request.strategy; }
  const AttentionSharding& sharding() const { return context_.sharding; }
  int index() const { return index_; }  // index of the rank among the cp ranks
  int ring_index() const { return sharding().ring_index(index_); }
  PlanBuilder& builder() { return builder_; }
  StreamId compute() const { return compute_; }
  StreamId comm() const { return comm_; }
  // The stream on which partial results are put together; compute() unless the strategy has them beside it.
  StreamId merging() const { return merging_; }
  bool merges_beside() const { return strategy().merges == Strategy::Merges::beside; }
  bool is_fused() const { return is_fused_; }  // uses_fused_attention()
  // Whether latent rows travel; whether the core moves them, and expands them block by block. (Where queries
  // rotate, keys stay, and are expanded before.)
  bool latent_travels() const { return context_.keys() == Strategy::Keys::latent; }
  bool core_moves_latent() const;
  // Whether gradients of keys are parts that fused kernels write.
  bool key_parts_are_fused() const { return is_fused_ && !core_moves_latent(); }
  // Of a problem with latent rows.
  LatentKeys& latent_keys() { return *latent_keys_; }
  const std::vector<HeadGroup>& head_groups() const { return head_groups_; }
  // The kv heads of the piece, by their numbers among all.
  Range kv_heads() const { return kv_heads_; }
  // From here on, the tensors of attention have the heads of this piece alone.
  void choose_heads(const HeadPiece& piece);

  // The communicators of the ranks that differ from this one only in the ring index, or only in the Ulysses
  // index.
  Team ring_team();
  Team ulysses_team();
  // The communicators of some ranks of the ring, given by ring index.
  Team ring_subteam(std::string name, const std::vector<int>& ring_indices);
  bool by_copy_engine() const { return strategy().transfers == Strategy::Transfers::copy_engine; }

  // The dtype in which partial gradients, or partial outputs, are kept and travel.
  DType gradient_dtype() const { return strategy().input_dtype_gradients ? problem().dtype : DType::f32; }
  DType merge_dtype() const { return strategy().input_dtype_merge ? problem().dtype : DType::f32; }

  // ---- memory ----
  Tensor temporary(std::string name, DType dtype, Order order, std::int64_t rows, std::int64_t heads,
                   std::int64_t dim);
  // Temporaries that other ranks reach by copy engines, where the strategy has them: symmetric then, and of
  // the same size on all ranks.
  BufferId reached(std::string name, DType dtype, std::int64_t numel);
  Tensor reached(std::string name, DType dtype, Order order, std::int64_t rows, std::int64_t heads,
                 std::int64_t dim);
  // A temporary of the shape and order of `model`, in the given dtype.
  Tensor temporary_like(std::string name, DType dtype, const Tensor& model);
  Tensor input(std::string name, Order order, std::int64_t rows, std::int64_t heads, std::int64_t dim);
  Tensor output(std::string name, Order order, std::int64_t rows, std::int64_t heads, std::int64_t dim);
  RowStatistic statistic(BufferKind kind, std::string name, std::int64_t rows, std::int64_t heads);
  // The same for some of the batch entries.
  RowStatistic statistic_part(std::string name, std::int64_t batch, std::int64_t rows, std::int64_t heads);
  // `target` itself if it has the dtype, else a temporary that finish() converts to it.
  Tensor accumulator(std::string name, DType dtype, const Tensor& target);
  // The places of parts that wait for their merge.
  PartPool& part_pool() { return part_pool_; }
  // The workspace of fused calls: all share one temporary, as large as the call that needs most.
  View workspace(std::int64_t bytes);
  // A shared place for a gradient that fused kernels write although nobody wants it; `which` is 0, 1 or 2. It
  // is dense, in the problem's dtype.
  View discarded(std::size_t which, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                 std::int64_t dim);

  // ---- steps; nothing where there are no elements ----
  // What belongs to attention runs on compute(), what puts partial results together on merging().
  enum class Of : std::uint8_t { attention, merge };
  void convert(const View& in, const View& out, std::string label, Of of = Of::attention);  // copy or cast
  void fill(const Tensor& tensor, double value, std::string label, Of of = Of::attention);
  void fill(const View& view, double value, std::string label, Of of = Of::attention);
  // Of merges.
  void finish(const Tensor& accumulator, const Tensor& target, std::string label);
  // out += in. `in` must have the dtype of `out`, or be 16 bits wide if `out` is f32.
  void accumulate(const View& in, const View& out, std::string label);
  void accumulate(const Tensor& in, const Tensor& out, std::string label);

  // ---- attention of the rank's query heads ---- Kernels are called for each HeadGroup, and for each stretch
  // of batch entries that share a mask. If no pair is allowed, out becomes 0 and lse -inf, and gradients
  // become 0 unless they accumulate.
  void attend(const ForwardOperands& operands, const Masks& masks, const std::string& label);
  // The same, merged with what is there already: for exact targets with `out` and `lse`, for fused targets as
  // one more part of `sum`.
  void attend_more(const ForwardOperands& operands, const Masks& masks, const std::string& label);
  void attend_more(const ForwardOperands& operands, const Masks& masks, const std::string& label,
                   PartialSum& sum);
  void attend_backward(const BackwardOperands& operands, const Masks& masks, const std::string& label);
  // Delta is needed by exact kernels. If only these run, begin() computes it at once; if fused ones run,
  // make() computes it when the first exact call needs it.
  RowDelta delta_of(const Tensor& out, const Tensor& dout);
  void begin(RowDelta& delta);
  void make(RowDelta& delta);
  // The sinks of some heads of the piece as a partial result of these sizes: its values are zeros, and its
  // lse is the same number for all rows of a head. Views of stride 0 say so.
  struct SinkPart {
    View values, lse;
  };
  SinkPart sink_part(std::int64_t batch, std::int64_t rows, Range heads, std::int64_t dim);
  // What the rows and heads of these tensors, those of the piece, add to the sinks' gradient.
  void sink_gradient(const Tensor& out, const Tensor& dout, const RowStatistic& lse);
  // Merges a partial result into (out, lse), for all batch entries or for some.
  void merge(const Tensor& in, const RowStatistic& in_lse, const Tensor& out, const RowStatistic& lse,
             std::string label) {
    merge(in, in_lse, out, lse, out.all_batches(), std::move(label));
  }
  void merge(const Tensor& in, const RowStatistic& in_lse, const Tensor& out, const RowStatistic& lse,
             Range batches, std::string label);

  Plan build(std::string_view pass) &&;

 private:
  void attend_entries(const ForwardOperands& operands, const Masks& masks, const EntryMask& mask,
                      const std::string& label);
  // What an exact step of these rows and heads needs to know for dropout; nothing without it.
  AttentionDropout dropout_of(const Masks& masks, const EntryMask& mask, const HeadGroup& heads) const;
  View seed();
  BufferId sinks();
  // The operands with keys and values that latent rows are expanded to; others as they are.
  ForwardOperands expanded(const ForwardOperands& operands, const std::string& label);
  StreamId stream_of(Of of) const { return of == Of::attention ? compute_ : merging_; }

  const AttentionContext& context_;
  const int index_;
  PlanBuilder builder_;
  StreamId compute_, comm_, merging_;
  PartPool part_pool_;
  const bool is_fused_;
  BufferId workspace_ = -1;
  std::array<BufferId, 3> discarded_ = {-1, -1, -1};
  std::vector<HeadGroup> head_groups_, all_head_groups_;
  Range kv_heads_;  // of the piece, among all
  std::unique_ptr<LatentKeys> latent_keys_;
  std::int64_t first_head_;  // the number of the first query head of the piece among all
  BufferId seed_ = -1, sinks_ = -1, dsinks_ = -1, no_values_ = -1;
};

}  // namespace cp::detail
