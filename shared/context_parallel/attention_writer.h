// AttentionWriter: what those who write attention plans share: tensors, streams, and kernel calls whose views
// are cut from them. Internal to shared/context_parallel.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/tensor.h"
#include "shared/plan/builder.h"

namespace cp::detail {

// The mask between some queries and some keys in neighbouring batch entries, which share it; no slices: no
// pairs.
struct EntryMask {
  Range batches;
  std::vector<MaskSlice> slices;
};
// By batch entry: all of them, in order.
using Masks = std::vector<EntryMask>;
inline bool has_pairs(const Masks& masks) {
  return std::any_of(masks.begin(), masks.end(), [](const EntryMask& mask) { return !mask.slices.empty(); });
}

// What all ranks' plans of one request share.
class AttentionContext {
 public:
  explicit AttentionContext(const AttentionRequest& request);

  const AttentionRequest request;
  const AttentionSharding sharding;

  // Whether the queries of ring index `q` have an allowed pair with the keys of ring index `kv`.
  bool meets(int q, int kv) const {
    return meets_[static_cast<std::size_t>(q) * static_cast<std::size_t>(sharding.ring_size()) +
                  static_cast<std::size_t>(kv)];
  }
  // The rows that a ring index computes on.
  const IndexSet& q_rows(int ring_index) const { return q_rows_[static_cast<std::size_t>(ring_index)]; }
  const IndexSet& kv_rows(int ring_index) const { return kv_rows_[static_cast<std::size_t>(ring_index)]; }
  // Batch entries that share a mask.
  const std::vector<MaskGroup>& mask_groups() const { return mask_groups_; }
  Masks masks(const IndexSet& q_rows, const IndexSet& k_rows) const;
  bool any_pair(const IndexSet& q_rows, const IndexSet& k_rows) const;
  std::int64_t num_q_rows(int ring_index) const { return size(q_rows(ring_index)); }
  std::int64_t num_kv_rows(int ring_index) const { return size(kv_rows(ring_index)); }

 private:
  const std::vector<MaskGroup> mask_groups_;
  std::vector<IndexSet> q_rows_, kv_rows_;  // by ring index
  std::vector<bool> meets_;
};

// Operands of attention, cut to the rows of the step.
// The log-sum-exp of a row that no key reaches.
inline constexpr double kLseOfNothing = -std::numeric_limits<double>::infinity();

struct ForwardOperands {
  Tensor q, k, v, out;
  RowStatistic lse;
};
// delta = rowsum(dout * out) of some queries. Exact kernels read it; fused ones make their own of out.
struct RowDelta {
  Tensor out, dout;
  RowStatistic rows;  // of buffer -1 until somebody needs it
  bool made = false;
};
class PartialSum;
// Where a backward step's gradient goes.
struct Gradient {
  Tensor tensor;
  bool accumulate = false;    // to what the tensor holds
  PartialSum* sum = nullptr;  // of a fused target: it is a part of this instead

  bool is_wanted() const { return sum != nullptr || !tensor.is_absent(); }
};
struct BackwardOperands {
  Tensor q, k, v, dout;
  RowStatistic lse;
  RowDelta* delta = nullptr;
  Gradient dq, dk, dv;  // dk and dv accumulate both or none, where both are wanted
};

// Heads whose kv heads serve equally many of them, local.
struct HeadGroup {
  Range q, kv;
};

class AttentionWriter {
 public:
  AttentionWriter(const AttentionContext& context, AttentionPass pass, Rank self, const Target& target);

  const AttentionContext& context() const { return context_; }
  const AttentionProblem& problem() const { return context_.request.problem; }
  const Gradients& gradients() const { return context_.request.options.gradients; }
  Masks masks(const IndexSet& q_rows, const IndexSet& k_rows) const { return context_.masks(q_rows, k_rows); }
  const Strategy& strategy() const { return context_.request.strategy; }
  const AttentionSharding& sharding() const { return context_.sharding; }
  int index() const { return index_; }  // of the rank among the cp ranks
  int ring_index() const { return sharding().ring_index(index_); }
  PlanBuilder& builder() { return builder_; }
  StreamId compute() const { return compute_; }
  StreamId comm() const { return comm_; }
  bool is_fused() const { return is_fused_; }  // uses_fused_attention()
  const std::vector<HeadGroup>& head_groups() const { return head_groups_; }

  // Communicators: of the ranks that differ from this one in the ring index, or in the Ulysses index.
  GroupId ring_group();
  GroupId ulysses_group();
  // Of some of the ring, by ring index.
  GroupId ring_subgroup(std::string name, const std::vector<int>& ring_indices);

  // What partial gradients, and partial outputs, are kept and travel in.
  DType gradient_dtype() const { return strategy().input_dtype_gradients ? problem().dtype : DType::f32; }
  DType merge_dtype() const { return strategy().input_dtype_merge ? problem().dtype : DType::f32; }

  // ---- memory ----
  Tensor temporary(std::string name, DType dtype, Order order, std::int64_t rows, std::int64_t heads,
                   std::int64_t dim);
  // A temporary like `model`, but of that dtype.
  Tensor temporary_like(std::string name, DType dtype, const Tensor& model);
  Tensor input(std::string name, Order order, std::int64_t rows, std::int64_t heads, std::int64_t dim);
  Tensor output(std::string name, Order order, std::int64_t rows, std::int64_t heads, std::int64_t dim);
  RowStatistic statistic(BufferKind kind, std::string name, std::int64_t rows, std::int64_t heads);
  // Of some of the batch entries.
  Tensor part(std::string name, DType dtype, std::int64_t batch, std::int64_t rows, std::int64_t heads,
              std::int64_t dim);
  RowStatistic statistic_part(std::string name, std::int64_t batch, std::int64_t rows, std::int64_t heads);
  // `target` itself when it has the dtype, else a temporary to be converted to it in the end.
  Tensor accumulator(std::string name, DType dtype, const Tensor& target);
  // What the calls of fused kernels share: one temporary, as large as the one that needs most.
  View workspace(std::int64_t bytes);
  // The same for a gradient that fused kernels write though nobody wants it; `which`: 0, 1 or 2. A dense one
  // of the problem's dtype.
  View discarded(std::size_t which, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                 std::int64_t dim);

  // ---- steps on the compute stream; nothing where there are no elements ----
  void convert(const View& in, const View& out, std::string label);  // a copy or a cast
  void finish(const Tensor& accumulator, const Tensor& target, std::string label);
  void fill(const Tensor& tensor, double value, std::string label);
  void fill(const View& view, double value, std::string label);
  // out += in, which has the same dtype or is 16 bits wide where `out` is f32.
  void accumulate(const View& in, const View& out, std::string label);
  void accumulate(const Tensor& in, const Tensor& out, std::string label);

  // ---- attention of the rank's query heads; kernels are called for each range of heads whose kv heads serve
  // equally many of them, and for each stretch of batch entries that share a mask. Without pairs: out 0 and
  // lse -inf, or gradients of 0 unless they accumulate. ----
  void attend(const ForwardOperands& operands, const Masks& masks, const std::string& label);
  // The same for exact targets, merged with what `out` and `lse` hold; for fused ones, one more part of a
  // result.
  void attend_more(const ForwardOperands& operands, const Masks& masks, const std::string& label);
  void attend_more(const ForwardOperands& operands, const Masks& masks, const std::string& label,
                   PartialSum& sum);
  void attend_backward(const BackwardOperands& operands, const Masks& masks, const std::string& label);
  // Delta is made at once where only exact kernels run, by begin(), and else when one first does, by make().
  RowDelta delta_of(const Tensor& out, const Tensor& dout);
  void begin(RowDelta& delta);
  void make(RowDelta& delta);
  // (out, lse) merged with a partial result, of all batch entries or some.
  void merge(const Tensor& in, const RowStatistic& in_lse, const Tensor& out, const RowStatistic& lse,
             std::string label) {
    merge(in, in_lse, out, lse, out.all_batches(), std::move(label));
  }
  void merge(const Tensor& in, const RowStatistic& in_lse, const Tensor& out, const RowStatistic& lse,
             Range batches, std::string label);

  Plan build(std::string_view pass) &&;

 private:
  void attend_entries(const ForwardOperands& operands, const EntryMask& mask, const std::string& label);

  const AttentionContext& context_;
  const int index_;
  PlanBuilder builder_;
  StreamId compute_, comm_;
  const bool is_fused_;
  BufferId workspace_ = -1;
  std::array<BufferId, 3> discarded_ = {-1, -1, -1};
  std::vector<HeadGroup> head_groups_;
};

// The output of a rank's queries, made of the partial results of disjoint sets of keys; exact targets merge
// them in the order in which they are added.
class PartialOutputs {
 public:
  // `parts`: how many will be added.
  PartialOutputs(AttentionWriter& writer, const Tensor& out, const RowStatistic& lse, int parts);
  ~PartialOutputs();

  struct Operands {
    Tensor q, k, v;
  };
  // Attention of the masks' pairs, of which there are some.
  void add(const Operands& operands, const Masks& masks, const std::string& label);
  // A partial result that another rank computed: a temporary that stays until finish().
  void add(const Tensor& out, const RowStatistic& lse, const std::string& label);
  // The output in its dtype: 0, with lse -inf, where nothing was added.
  void finish();

 private:
  AttentionWriter& writer_;
  Tensor out_, sum_;
  RowStatistic lse_;
  bool empty_ = true;
  std::unique_ptr<PartialSum> parts_;  // of a fused target
};

// A gradient that is the sum of partial ones. Of an absent one there is nothing to do: it gives steps no
// place, and takes no parts.
class PartialGradient {
 public:
  enum class Of : std::uint8_t { queries, keys };
  // `parts`: how many come for a row.
  PartialGradient(AttentionWriter& writer, const std::string& name, const Tensor& gradient, Of of, int parts);
  ~PartialGradient();
  PartialGradient(PartialGradient&&) noexcept;

  // For one more backward step.
  Gradient next();
  // A partial gradient that came from elsewhere: a temporary that stays until settle() or finish().
  void add(const Tensor& part, const std::string& label);
  void settle(const std::string& label);
  // The gradient in its dtype: 0 where nothing was added.
  void finish(const std::string& label);

 private:
  AttentionWriter* writer_;
  Tensor gradient_, sum_;
  bool begun_ = false;
  std::unique_ptr<PartialSum> parts_;  // of a fused target
};

}  // namespace cp::detail
