// StepWriter is what all writers of a step's pieces share: the rank's sizes and groups, its working buffers,
// and the products, kernels and collectives between the tensor-parallel regions.
//
// Rows of activations are [batch, rows of the sequence]; a rank has `tokens` of them. Between the regions a
// tp rank holds `tokens_tp` of them. Gathered they are `padded_tokens`, and those behind `tokens` are zero.
// Without sequence parallelism every tp rank holds all rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/fully_shard/stack.h"
#include "shared/fully_shard/unshard_writer.h"
#include "shared/plan/builder.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/row_moves.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/weights.h"

namespace cp {

// The digest of what a plan of a part is made of.
Digest inputs_of(const StepRequest& request, StepPart part);

// What all writers of one rank's plan need to know. It keeps references to the request and the cache.
struct StepContext {
  StepContext(const StepRequest& request, StepPart part, int stage, Rank self, MixerPlanCache& cache);

  const StepRequest& request;
  const Transformer& model;
  const Workload& workload;
  const ParallelLayout& layout;
  StepPart part;
  int stage;
  Rank self;
  MixerPlanCache& mixer_plans;
  RankGroups groups;
  LocalSizes sizes;
  std::vector<AttentionRequest> attention;      // of each of the model's kinds of layers
  std::optional<RecurrenceRequest> recurrence;  // of all layers that have one
  std::vector<int> kinds;                       // of the layers of the stage
  std::vector<int> homes;             // of these, and of the rows that they hand on (homes_of_stage())
  std::vector<LayerParts> parts;      // of the model's kinds of layers
  std::int64_t layers = 0;            // of the stage
  ByParts<std::int64_t> layers_with;  // of the stage, prediction layers among them
  std::array<ByParts<std::int64_t>, kMostHomes> layers_that_keep;  // at each home; more than their input
  bool first_stage, last_stage, training;
  std::int64_t predictions = 0;  // prediction layers of the stage: in training the last one has all of them

  std::int64_t hidden = 0;
  // Of this rank, at the home of what is written: where layers have their rows at two homes, a rank may have
  // one more at either. enter() changes the home.
  std::int64_t tokens = 0, tokens_tp = 0, padded_tokens = 0;
  std::int64_t new_rows = 0;             // of a sequence; in serving those of its queries
  std::vector<std::int64_t> cache_rows;  // serving: rows of its keys, in layers of each kind

  // The rows of this rank that a dense MLP computes at once: all of them if there are no chunks.
  std::int64_t mlp_rows() const {
    return layout.mlp_chunks == 1 ? tokens : std::max<std::int64_t>(1, ceil_div(tokens, layout.mlp_chunks));
  }
  // What attention takes of latent rows, in all layers that have it.
  LatentUse latent = LatentUse::nothing;

  // What all layers have alike of it: where rows are at home. Without cp: the default.
  const Strategy& strategy() const { return attention.front().strategy; }
  // Those of the weights that all tp ranks hold alike whose gradients are sums over these ranks. With
  // sequence parallelism these are all: each rank's norms see a part of the rows. Without it every rank's
  // norms, and what makes latent rows, see all rows and have the whole gradient, once that of the latent rows
  // is added up; the norms of q and k, and the router, still see a rank's own columns only.
  const WeightRanges& summed_over_tp(LayerParts of) const {
    return layout.row_ranks() > 1 ? layer[of].replicated : layer[of].replicated_behind_norms;
  }
  // Whether the stage has the embedding's table in a unit of its own. With stages, the last one needs it for
  // prediction layers, unless it has a copy as the head's.
  bool has_embedding() const {
    return first_stage || (last_stage && (layout.pp == 1 || (predictions > 0 && !model.tied_embeddings)));
  }
  // Whether a rank has several stages, whose gradients are all reduced before the first of its updates.
  bool reduces_before_updates() const { return layout.virtual_stages > 1; }
  // Whether the first and the last stage have copies of the table, whose gradients they add up.
  bool copies_table() const { return layout.pp > 1 && model.embeds_behind_layers(); }
  // Whether q and k are normalized in layers of this kind.
  bool normalizes_qk(int kind) const { return model.normalizes_qk(model.kinds[idx(kind)]); }
  // Whether the norms of q and k are over heads of several tp ranks, which add up sums of each row.
  bool norms_cross_ranks() const { return model.qk_norm_of_all_heads && layout.tp > 1; }
  StageLayers stage_layers() const { return {kinds, parts, homes, layout.bucket}; }

  // From here on, rows are at this home.
  void enter(int home);
  int home() const { return home_; }
  // What tokens_tp is at a home.
  std::int64_t rows_at(int home) const {
    return ceil_div(layout.micro_batch * size(positions_at_[idx(home)]), layout.row_ranks());
  }
  std::int64_t layers_at(int home) const {  // of the stage
    return std::count(homes.begin(), homes.end() - 1, home);
  }
  // The positions of a sequence's rows on this rank, at the home of what is written.
  const IndexSet& positions() const { return positions_at_[idx(home_)]; }
  // What goes where if the rows of the whole group leave `home` for the other one. The model must have both.
  const std::vector<RowMove>& moves_from(int home) const { return moves_from_[idx(home)]; }

  ByParts<LayerWeights> layer;
  ExpertWeights experts;
  HeadWeights head;
  Weight embedding;
  PredictionWeights prediction;

 private:
  int home_ = 0;
  std::array<IndexSet, kMostHomes> positions_at_;  // the rows of a sequence on this rank
  std::array<std::vector<RowMove>, kMostHomes> moves_from_;
};

// The steps begin .. end - 1, which one pass of a mixer's own plan gave.
struct MixerSteps {
  StepId begin = 0, end = 0;
  bool backward = false;
};

class StepWriter {
 public:
  explicit StepWriter(const StepContext& context);

  const StepContext& context() const { return context_; }
  PlanBuilder& builder() { return builder_; }
  StreamId compute() const { return compute_; }
  DType dtype() const { return context_.workload.dtype; }
  bool splits_rows() const { return context_.layout.row_ranks() > 1; }

  // The working buffer `name`, as large as its largest use. Behind begin_region() the names mean new buffers:
  // each layer and each end of a stage has its own, so that none lives longer than what it is for.
  Window working(std::string_view name, DType dtype, std::int64_t numel, std::string_view term = "working");
  View working_rows(std::string_view name, std::int64_t rows, std::int64_t width) {
    return working(name, dtype(), rows * width).dense(0, {rows, width});
  }
  void begin_region() { working_.clear(); }

  // ---- steps; nothing where there are no elements ----
  void matmul(const View& a, const View& b, const View& out, std::string label, bool accumulate = false);
  void kernel(RowKernel kernel, std::string label);
  // A product whose result is the gradient of a weight.
  void weight_gradient(const View& a, const View& b, const Weight& weight, const GradientPlace& gradients,
                       std::string label);
  // The same of a gradient that was made before, f32, as large as the weight.
  void weight_gradient(const View& made, const Weight& weight, const GradientPlace& gradients,
                       const std::string& name);
  // A kernel that gives gradients of weights, [begin, begin + numel) of a piece, in addition to what it
  // writes and updates.
  void kernel_with_gradients(RowKernel kernel, const std::vector<Weight>& weights,
                             const GradientPlace& gradients, std::string label);
  void fill(const View& out, double value, std::string label);
  void copy(const View& in, const View& out, std::string label);  // or cast
  void accumulate(const View& in, const View& out, std::string label);
  void all_to_all(const View& in, const View& out, std::string label);  // over the ep group
  // Adds up, over the tp ranks, f32 numbers of each row that a norm needs.
  void add_up_norm_sums(const View& sums, std::string label) {
    all_reduce("tp", context_.groups.tp_group(), ReduceOp::sum, sums, "tp", std::move(label));
  }
  void all_reduce(std::string_view group, const std::vector<Rank>& ranks, ReduceOp op, const View& data,
                  std::string_view stream, std::string label);

  // Gathers [rows, width] of each tp rank to [tp x rows, width]; returns `local` itself if rows are not
  // split.
  View gather(const View& local, std::string_view name, const std::string& label);
  // Gathers [tokens_tp, width] of all tp ranks to [tokens, width]; returns `local` itself if rows are not
  // split.
  View gather_rows(const View& local, std::string_view name, const std::string& label);
  // Where a region writes its partial sums, [tokens, width], for scatter_rows() to add up. It is `local`
  // itself if rows are not split.
  View partial_rows(const View& local, std::string_view name);
  void scatter_rows(const View& partial, const View& local, const std::string& label);

  // The table of sines and cosines for all positions of a sequence, f32, [seq_len, what of head_dim is
  // rotated], which rotary_table() makes. Rotary kernels read the rows of the rank's positions. Every rank
  // has the whole table, however many ranks share the sequence. Where layers with a window have angles of
  // their own, their table stands behind the other one in the buffer. Of a kind of layers without positions
  // the view has no columns.
  View positions(int kind);

  // What a router adds to the scores that it chooses by, [experts]. `of_mlp` says which of the layers with
  // experts it is of.
  View score_correction(StackIndex of_mlp);
  // How many tokens of the step have chosen each of its experts so far, [experts].
  View loads(StackIndex of_mlp);

  // Exchanges rows, [tokens_tp, hidden], with the stage before (direction -1) or behind (+1).
  void receive(int direction, const View& rows);
  void send(int direction, const View& rows);

  // Brings rows, [tokens_tp, hidden], from a home to the other one; each view has the rows of its home. Rows
  // that stay on the rank are copied.
  void move_rows(int from_home, const View& from, const View& to, const std::string& label);

  // Appends the steps of the attention plan of a layer. place(name, numel) must return the view for each of
  // its buffers, but for the seed of dropout.
  void attention(AttentionPass pass, const LayerPlace& at,
                 const std::function<View(std::string_view, std::int64_t)>& place);

  // The same of recurrences.
  void recurrence(RecurrencePass pass, const std::function<View(std::string_view, std::int64_t)>& place);
  // Of both, in the order in which they were written.
  const std::vector<MixerSteps>& mixer_steps() const { return mixer_steps_; }

  UnplacedPlan build() &&;

 private:
  void splice(const Plan& plan, bool backward,
              const std::function<View(std::string_view, std::int64_t)>& place, std::string_view prefix);
  void exchange(int direction, const View& rows, bool sends);
  // What dropout in a layer of the stage, or behind these in a prediction layer, reads (kSeedsBuffer).
  View seed(StackIndex layer);
  // A buffer of its own, whatever has the same name: regions gather rows one after the other.
  View new_rows(std::string_view name, std::int64_t rows, std::int64_t width);

  const StepContext& context_;
  PlanBuilder builder_;
  StreamId compute_;
  GroupId tp_ = -1, ep_ = -1;
  BufferId positions_ = -1, score_correction_ = -1, loads_ = -1, seeds_ = -1;
  std::vector<std::pair<std::string, BufferId>> working_;
  std::vector<MixerSteps> mixer_steps_;
};

// Rows first .. first + count - 1 of a matrix.
View rows_of(const View& matrix, std::int64_t first, std::int64_t count);
// Columns first .. first + count - 1.
View columns_of(const View& matrix, std::int64_t first, std::int64_t count);
View transposed(const View& matrix);  // or each of several matrices

}  // namespace cp
