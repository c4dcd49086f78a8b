// StepWriter: what the writers of a step's pieces share: sizes and groups of the rank, working buffers, and
// the products, kernels and collectives between the tensor-parallel regions.
//
// Rows of activations are [batch, rows of the sequence]: a rank's `tokens`. Between the regions a tp rank
// holds `tokens_tp` of them; gathered they are `padded_tokens`, of which those behind `tokens` are zero.
// Without sequence parallelism each holds all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/fully_shard/stack.h"
#include "shared/fully_shard/unshard_writer.h"
#include "shared/plan/builder.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/weights.h"

namespace cp {

// What all pieces of one rank's plan ask for.
struct StepContext {
  StepContext(const StepRequest& request, StepPart part, int stage, Rank self, AttentionPlanCache& cache);

  const StepRequest& request;
  const Transformer& model;
  const Workload& workload;
  const ParallelLayout& layout;
  StepPart part;
  int stage;
  Rank self;
  AttentionPlanCache& attention_plans;
  RankGroups groups;
  LocalSizes sizes;
  AttentionRequest attention;
  std::int64_t layers = 0;  // of the stage
  bool first_stage, last_stage, training;

  std::int64_t hidden = 0;
  std::int64_t tokens = 0, tokens_tp = 0, padded_tokens = 0;  // of this rank
  std::int64_t new_rows = 0, cache_rows = 0;                  // serving: of a sequence's queries; of its keys

  // That a dense MLP computes at once, of this rank: all of them where there are no chunks.
  std::int64_t mlp_rows() const {
    return layout.mlp_chunks == 1 ? tokens : std::max<std::int64_t>(1, ceil_div(tokens, layout.mlp_chunks));
  }
  // Of the weights that all tp ranks hold alike, those whose gradients are sums over them, at the end of
  // LayerWeights::replicated: each rank's norms see all rows without sequence parallelism, but norms of q and
  // k, and routers, a rank's own columns alone.
  Weight summed_over_tp() const {
    const std::int64_t begin = layout.row_ranks() > 1 ? 0 : layer.norm2.end();
    return {begin, 1, layer.replicated - begin};
  }

  LayerWeights layer;
  ExpertWeights experts;
  HeadWeights head;
  Weight embedding;
};

class StepWriter {
 public:
  explicit StepWriter(const StepContext& context);

  const StepContext& context() const { return context_; }
  PlanBuilder& builder() { return builder_; }
  StreamId compute() const { return compute_; }
  DType dtype() const { return context_.workload.dtype; }
  bool splits_rows() const { return context_.layout.row_ranks() > 1; }

  // ---- memory ----
  // The working buffer of that name of this pass, made on first use. The next pass gets buffers of its own.
  Window working(std::string_view name, DType dtype, std::int64_t numel, std::string_view term = "working");
  View working_rows(std::string_view name, std::int64_t rows, std::int64_t width) {
    return working(name, dtype(), rows * width).dense(0, {rows, width});
  }
  void begin_pass() { working_.clear(); }

  // ---- steps; nothing where there are no elements ----
  void matmul(const View& a, const View& b, const View& out, std::string label, bool accumulate = false);
  void kernel(RowKernel kernel, std::string label);
  // The same, where a weight's gradient comes out.
  void weight_gradient(const View& a, const View& b, const Weight& weight, const GradientPlace& gradients,
                       std::string label);
  // Of a kernel that gives gradients of weights, [begin, begin + numel) of a piece, beside what it writes and
  // updates.
  void kernel_with_gradients(RowKernel kernel, const std::vector<Weight>& weights,
                             const GradientPlace& gradients, std::string label);
  void fill(const View& out, double value, std::string label);
  void copy(const View& in, const View& out, std::string label);  // or cast
  void accumulate(const View& in, const View& out, std::string label);
  void all_to_all(const View& in, const View& out, std::string label);  // over the ep group
  void all_reduce(std::string_view group, const std::vector<Rank>& ranks, ReduceOp op, const View& data,
                  std::string_view stream, std::string label);

  // ---- between the tensor-parallel regions ----
  // [rows, width] of each tp rank as [tp x rows, width]; itself where rows are not split.
  View gather(const View& local, std::string_view name, const std::string& label);
  // [tokens_tp, width] of all tp ranks as [tokens, width]; itself where rows are not split.
  View gather_rows(const View& local, std::string_view name, const std::string& label);
  // Where a region writes its partial sums of [tokens, width] that scatter_rows() adds up: `local` itself
  // where rows are not split.
  View partial_rows(const View& local, std::string_view name);
  void scatter_rows(const View& partial, const View& local, const std::string& label);

  // With the stage before (-1) or behind (+1): rows [tokens_tp, hidden] from or to it.
  void receive(int direction, const View& rows);
  void send(int direction, const View& rows);

  // Appends the attention plan; `place(name, numel)` says where each of its buffers lies.
  void attention(AttentionPass pass, const std::function<View(std::string_view, std::int64_t)>& place);

  Plan build() &&;

 private:
  void exchange(int direction, const View& rows, bool sends);

  const StepContext& context_;
  PlanBuilder builder_;
  StreamId compute_;
  GroupId tp_ = -1, ep_ = -1;
  std::vector<std::pair<std::string, BufferId>> working_;
};

// Some rows of a matrix.
View rows_of(const View& matrix, std::int64_t first, std::int64_t count);
// Some columns.
View columns_of(const View& matrix, std::int64_t first, std::int64_t count);
View transposed(const View& matrix);

}  // namespace cp
