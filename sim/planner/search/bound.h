// StepBound: a lower bound of the time that a layout's step takes on the timeline. It takes some
// microseconds, where a replay takes about a millisecond.
//
// What a layer does is read from its plan (layer_reading.h), as are embedding, head and prediction layers:
// which steps it has, what each takes alone, and in which order they have to run. A plan is read once for all
// layouts whose layers are alike, and is small. What is told here is how layers, and what goes on beside
// them, follow one another:
//   - Layers, head and embedding come one behind the other: their kernels share a stream.
//   - All weights must be gathered, and all gradients scattered and added up over replicas; the optimizer
//     begins behind the sums, since it needs the norm of all gradients. Nothing hides what the first layer
//     waits for, nor what is scattered behind the last gradients. Nor do transfers run ahead of kernels, or
//     fall behind them, by more than a layer or two: sharded_bound.cc walks the layers.
//   - Stages are put into their schedule.
// Attention and recurrences have formulas of their own (attention_bound.cc): they bound all layouts of a
// family, whatever strategy these have, and no plan of a family exists; nor does one of its head, which has
// as many chunks as a member says. Of one layout a replay of attention counts in its place
// (attention_times.h).
//
// What is gathered, scattered, added up and updated has formulas, too (sharding_bound.cc): the 272,000
// families of Nemotron 3 Nano on 2,048 GPUs have 55,000 updates that differ, of which one takes 0.07 to 0.7
// ms to write, longer than the rest of the search. Where stages share a rank, the formula is two thirds of
// the update: what a unit scatters and adds up comes one behind the other there, stage by stage. So a family
// whose members are looked at has its update replayed, which is the same for all of them
// (Evaluator::update_ns).
//
// No link and no kernel is taken to be faster than its peak. tests/planner/bound_test.cc compares the bound
// with the timeline.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "shared/base/units.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/sizes.h"
#include "sim/base/memo.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/nccl_model.h"
#include "sim/planner/search/attention_times.h"
#include "sim/planner/search/layer_reading.h"
#include "sim/planner/search/pipeline_bound.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

class StepBound {
 public:
  explicit StepBound(const PlanQuestion& question);  // which must outlive this

  // The bound of one layout in ns. refuse() must not refuse the layout.
  double ns(const ParallelLayout& layout) const {
    return step_ns(layout, shared(layout), Of::layout, nullptr);
  }
  // A sharper bound of a layout in training: `attention` is what its attention takes at least
  // (AttentionTimer::least), and `update_ns` its update (Evaluator::update_ns; 0: the formula's is all that
  // is known). Stages are put into their schedule, which takes longer than the rest. It may be less where it
  // is above `most_ns` already.
  double ns(const ParallelLayout& layout, const AttentionTimes& attention, double update_ns = 0,
            double most_ns = kNever) const {
    return step_ns(layout, with_update(shared(layout), update_ns), Of::layout, &attention, most_ns);
  }
  // What the stages of a layout with pp above 1 take in training, at least.
  PipelineBound pipeline(const ParallelLayout& layout, const AttentionTimes& attention,
                         double update_ns = 0) const;
  // A bound of all members of the layout's family (layout_space.h). It takes attention as shared evenly among
  // the cp ranks without any transfer, and nothing as computed again.
  double family_ns(const ParallelLayout& layout) const {
    return step_ns(layout, shared(layout, true), Of::family, nullptr);
  }

 private:
  friend class FamilyBound;

  struct Pass {
    // Backward, the mean over the layers of a kind, of which some may be computed again first.
    double forward_ns = 0, backward_ns = 0;
    double kept_backward_ns = 0, again_backward_ns = 0;  // of layers that are not, and that are
    double again_moved_ns = 0;  // of a layer that is computed again: what its transfers take then
    // What each call of attention or of a recurrence takes, with the transfers that nothing hides.
    double mixer_forward_ns = 0, mixer_backward_ns = 0;
  };
  struct Attention {
    // The kernels of the rank that has most pairs or, if that takes longer, what it receives meanwhile.
    Pass kernels;
    Pass moved;  // the transfers before and behind them, beside which none of these kernels runs
  };
  // What the mixer of a layer takes at least.
  struct MixerBound {
    double forward_ns = 0, moved_ns = 0;  // with transfers, and these alone
    double backward_ns = 0;               // kernels, and the transfers behind them that nothing hides
    double chain_ns = 0;  // kernels and all transfers, beside which gradients of weights may be computed
  };
  // A group of `size` ranks, of which neighbours are `stride` ranks apart in the cluster.
  struct Ranks {
    std::int64_t stride = 1, size = 1;
  };

  // Times to gather weights, to scatter gradients, and of what both put on the port of the GPU that they
  // share.
  struct Sharding {
    double gather_ns = 0, scatter_ns = 0, port_gather_ns = 0, port_scatter_ns = 0;
    Sharding times(std::int64_t gathers, std::int64_t scatters) const;
    Sharding& operator+=(const Sharding& more);
    double ns() const;  // a bound of both
  };
  // Passes of a layer that are read apart. Backward: where the layer keeps all that its writers can keep,
  // where it makes cheap things again (Recompute::Kind::selective), and where it is computed again first.
  enum class Read : std::uint8_t { forward, backward, selective, again };
  static constexpr std::size_t kReads = 4;
  // What was read of a layer so far; null: nobody has asked. The readings stay where they are (readings_).
  using Readings = std::array<const LayerReading*, kReads>;
  // What stands before the first layer of a micro-batch and behind the last one of its backward pass, and
  // nothing hides.
  struct Ends {
    double before_ns = 0;
    double experts_ns = 0;  // until the weights of the first layer's experts are there, and their products
    double behind_ns = 0;
  };
  // What members of one family share if they have the same number of rows. Times are of one layer unless a
  // comment says otherwise.
  struct Shared {
    LocalSizes sizes;
    std::int64_t tokens = 0;  // least_tokens()
    // Of a layer of each kind, with what attention takes of latent rows: nothing, or the rows.
    mutable std::array<std::vector<Readings>, 2> readings;
    ByParts<Sharding> shards;     // of one layer
    Sharding expert_shards;       // of that, its experts
    Sharding table, head_shards;  // of the embedding, and of the head with its norm
    Sharding predictions;         // all that prediction layers gather and scatter in a micro-batch
    // Of gradients that the next layer waits for, of all layers.
    double casts_ns = 0;
    Ends ends;                                      // of a micro-batch without stages
    double send_ns = 0;                             // of the rows that one stage sends the next
    double update_ns = 0;                           // of the whole step, behind its last backward pass
    std::vector<std::vector<std::int64_t>> stages;  // how many layers of each kind each stage has
  };

  Shared shared(const ParallelLayout& layout, bool whole_family = false) const;
  // The same, where the update is known to take no less than that.
  static Shared with_update(Shared shared, double update_ns);
  // Of a micro-batch, on whichever rank stands for the others: no more than the rank has that has fewest, and
  // as many as leave no tp rank rows to pad, which take kernels of their own.
  std::int64_t least_tokens(const ParallelLayout& layout, bool whole_family) const;
  // What a bound is of: all members of a family; a layout; or a layout whose micro-batch is also walked layer
  // by layer (sharded_ns), as it is wherever times were replayed.
  enum class Of : std::uint8_t { family, layout, member };
  double step_ns(const ParallelLayout& layout, const Shared& shared, Of of, const AttentionTimes* replayed,
                 double most_ns = kNever) const;
  // Without stages.
  double micro_batch_ns(const ParallelLayout& layout, const Shared& shared, const std::vector<Pass>& of_kinds,
                        double head_ns, double predictions_ns, Of of, const AttentionTimes* replayed) const;
  // Of a micro-batch that gathers parameters or scatters gradients, walked layer by layer (sharded_bound.cc).
  // 0 where it does neither, and where the walk claims nothing.
  double sharded_ns(const ParallelLayout& layout, const Shared& shared, const std::vector<Pass>& of_kinds,
                    double head_ns, const AttentionTimes* replayed) const;
  PipelineBound pipeline(const ParallelLayout& layout, const Shared& shared,
                         const std::vector<Pass>& of_kinds, double head_ns, double predictions_ns,
                         const AttentionTimes* replayed) const;
  static Pass sum_of(const std::vector<Pass>& of_kinds, const std::vector<std::int64_t>& layers_of_kind);
  // Of the rows that go from home to home between the layers of a stage.
  Pass moves(const ParallelLayout& layout, int stage, const AttentionTimes* replayed) const;
  // Of a layer of each kind.
  std::vector<Pass> layers(const ParallelLayout& layout, const Shared& shared, bool whole_family,
                           const AttentionTimes* replayed) const;
  Pass layer(const ParallelLayout& layout, const Shared& shared, int kind, const MixerBound& of_mixer,
             bool whole_family) const;
  // The same where attention takes that of latent rows.
  Pass layer(const ParallelLayout& layout, const Shared& shared, int kind, const MixerBound& of_mixer,
             bool whole_family, LatentUse use) const;
  // What is read of a layer of that kind: found once for all layouts whose layers are alike, since a search
  // asks for the families of all layouts, and much of what these differ in is none of a layer's business.
  const LayerReading& read(const ParallelLayout& layout, const Shared& shared, std::size_t kind, Read what,
                           LatentUse use) const;
  const LayerReading& read(const ParallelLayout& layout, const Shared& shared, std::size_t kind,
                           Read what) const {
    return read(layout, shared, kind, what, latent_use(question_.model, question_.workload, layout));
  }
  LayerReading made_reading(const ParallelLayout& layout, std::size_t kind, std::int64_t tokens, Read what,
                            LatentUse use) const;
  Attention attention(const ParallelLayout& layout, const LocalSizes& sizes, std::size_t kind,
                      bool whole_family) const;
  Pass recurrence(const ParallelLayout& layout, const LocalSizes& sizes) const;
  // Rows of a sequence that the cp ranks have at home, and queries and keys of the blocks that they compute
  // on: of the rank with fewest, and with most.
  struct BlockRows {
    std::int64_t least_at_home = 0, least = 0, most = 0;
  };
  BlockRows block_rows(const ParallelLayout& layout, std::size_t kind) const;
  // The pairs of the last `rows` rows of a sequence, in one head of a layer of that kind.
  double pairs_of_last(std::int64_t rows, const LayerKind& kind) const;
  // A bound of what brings `bytes` from each of the other ranks. Of an all-to-all each rank gets its own. Of
  // a gather all get the same: what comes from elsewhere may enter a node once, by the NICs of all that are
  // there.
  enum class Brings : std::uint8_t { each_its_own, all_the_same };
  double from_each_ns(double bytes, const Ranks& ranks, Brings what) const;
  // A bound of a message to the next rank of a ring, for the pair of ranks where it takes longest.
  double hop_ns(double bytes, const Ranks& ranks) const;
  std::int64_t on_a_node(const Ranks& ranks) const;
  // What an end of the layers takes, read from its plan.
  double end_ns(const ParallelLayout& layout, std::int64_t tokens, EndPart part) const;
  // How long a transfer of a plan of the layout's tp and ep ranks takes alone.
  double transfer_ns(const ParallelLayout& layout, const Collective& transfer, const Plan& plan) const;
  // Forward and backward at once, unless it is one of serving.
  double head_ns(const ParallelLayout& layout, const Shared& shared, bool whole_family) const;
  // What all prediction layers compute of a micro-batch, and their losses, one behind the other.
  double predictions_ns(const ParallelLayout& layout, const Shared& shared, double head_ns, bool whole_family,
                        const AttentionTimes* replayed) const;
  Ends ends(const ParallelLayout& layout, const Shared& shared) const;
  double casts_ns(const ParallelLayout& layout, const LocalSizes& sizes) const;
  double cast_of_gradients_ns(const ParallelLayout& layout, std::int64_t parameters) const;
  double cast_of_shard_ns(const ParallelLayout& layout, std::int64_t parameters) const;
  // Of the rank that has the head, which has so many layers with which parts.
  double update_ns(const ParallelLayout& layout, const Shared& shared,
                   const ByParts<std::int64_t>& layers) const;
  // To add up gradients over the ranks that have the same shard of them.
  double replicas_ns(const ParallelLayout& layout, std::int64_t shard) const;
  double replicas_of_experts_ns(const ParallelLayout& layout, std::int64_t shard) const;
  double summed_ns(std::initializer_list<Ranks> groups, std::int64_t shard) const;
  // A layer's part of the sharding of its bucket, of that many parameters of each layer that are sharded; or
  // that of its experts.
  Sharding sharding_in_bucket(const ParallelLayout& layout, std::int64_t parameters, bool of_experts) const;
  // The sharding of a layer, or of its experts, that has that many parameters, or more; none of none.
  Sharding sharding(const ParallelLayout& layout, std::int64_t parameters) const;
  Sharding sharding_of_experts(const ParallelLayout& layout, std::int64_t parameters) const;
  Sharding with_casts(const ParallelLayout& layout, std::int64_t parameters, Sharding sharding) const;
  Sharding sharding(const Spread& spread, std::int64_t parameters) const;
  Sharding made_sharding(const Spread& spread, std::int64_t parameters) const;
  std::optional<std::pair<Ranks, Ranks>> along_data(const ParallelLayout& layout, std::int64_t step,
                                                    std::int64_t count) const;
  Spread spread_of_ep(const ParallelLayout& layout) const;
  // How the ranks of one group lie on the nodes, with all that NCCL goes by.
  Spread spread_of(const Ranks& group) const;
  // How the ranks that are i * stride apart along each of these groups lie on the nodes.
  Spread spread_of_ranks(std::initializer_list<Ranks> groups) const;

  double memory(double bytes) const { return bytes / best_hbm_; }

  const PlanQuestion& question_;
  const KernelCost kernels_;
  // Of each kind of layers: a model of one layer of it, without what the mixer alone knows (windows); and the
  // first kind that has the same one.
  std::vector<Transformer> alone_;
  std::vector<std::size_t> first_alike_;
  const std::vector<std::int64_t> layers_of_kinds_;  // of the whole model, without prediction layers
  const ByParts<std::int64_t> layers_of_parts_;
  std::vector<double> pairs_;  // of one sequence and head, for each kind of layers
  double best_hbm_ = 0;        // bytes per ns
  double best_product_ = 0;    // flops per ns
  double launch_ns_ = 0;       // of each kernel
  const CollectiveSettings collectives_;
  mutable Memo<std::pair<std::int64_t, std::int64_t>, Spread> spreads_;  // by stride and size
  // All that what is read of a layer depends on: its kind, the pass, and the use of latent rows; degrees; how
  // far apart tp ranks are, and how ep ranks lie on nodes; and how many rows there are.
  using ReadingKey =
      std::tuple<std::size_t, Read, LatentUse, std::array<int, 6>, std::array<std::int64_t, 2>>;
  mutable Memo<ReadingKey, LayerReading> readings_;
  // An end's part, and the degrees and rows that it depends on.
  using EndKey = std::tuple<EndPart, std::array<int, 4>, std::int64_t>;
  mutable Memo<EndKey, LayerReading> ends_;
  // A kind of layers, cp and Ulysses degrees, and the balance.
  using BlockRowsKey = std::tuple<std::size_t, int, int, Balance::Kind, std::int64_t, bool>;
  mutable Memo<BlockRowsKey, BlockRows> block_rows_;
  mutable Memo<std::array<std::int64_t, 4>, Sharding> shardings_;  // by spread and parameters
};

// Computes the bounds of the members of one family, one after the other, and keeps what neighbours share.
class FamilyBound {
 public:
  // The bound must outlive this. All members have the same update (as in StepBound::ns).
  explicit FamilyBound(const StepBound& bound, double update_ns = 0) : bound_(bound), update_ns_(update_ns) {}

  // StepBound::ns, or more where layers gather parameters or scatter gradients.
  double ns(const ParallelLayout& member);

 private:
  const StepBound& bound_;
  const double update_ns_;
  std::optional<StepBound::Shared> shared_;
};

}  // namespace cp::sim
