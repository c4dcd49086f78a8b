// A ParallelLayout says how a model is laid out over GPUs: the degree of each kind of parallelism, the
// strategy of attention, and the choices that go with them.
//
//   tp   Tensor parallelism splits heads and MLP columns. Between those regions it splits rows, if sequence
//        parallelism is on (Korthikanti et al. 2022). Without it every tp rank has all rows there, and sums
//        are all-reduced (Shoeybi et al. 2019).
//   cp   Context parallelism splits the sequence, and computes attention by `strategy`.
//   dp   Data parallelism runs dp_replicate x dp_shard replicas of the batch. It shards parameters, or only
//        their gradients or the optimizer's states, over dp_shard or over dp_shard x cp (ZeRO; Rajbhandari et
//        al. 2020).
//   ep   Expert parallelism splits the experts over ep neighbours among dp_shard x cp. It does not multiply
//        the world (torchtitan's rule).
//   pp   Pipeline parallelism makes stages of consecutive layers. Each rank has virtual_stages of them, in a
//        1F1B or an interleaved schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/context_parallel/strategy.h"
#include "shared/fully_shard/sharding_group.h"
#include "shared/mesh/mesh.h"
#include "shared/mesh/parallel_dims.h"
#include "shared/recurrence/strategy.h"
#include "shared/transformer/model.h"
#include "shared/transformer/workload.h"

namespace cp {

// What the backward pass computes again, so that the forward pass need not keep it (activation
// checkpointing).
//   none       nothing: everything that it needs is kept
//   selective  the norms, the activation function and the gathered inputs: nothing with a product or
//              attention
//   full       the whole layer, from its input
//   every      like full for every `every`-th layer, and like none for the others
struct Recompute {
  enum class Kind : std::uint8_t { none, selective, full, every };
  Kind kind = Kind::none;
  int every = 1;
  bool operator==(const Recompute&) const = default;
};
std::string to_string(const Recompute& recompute);  // "none", "selective", "full", "every:2"
Recompute parse_recompute(std::string_view text);   // throws InvalidInput that lists them
// Reads a value of ParallelLayout::window_core: "same" (unset), or a core's name. Throws InvalidInput that
// names the nearest.
inline constexpr std::string_view kSameCore = "same";
std::optional<Core> parse_window_core(std::string_view text);
// Reads a value of ParallelLayout::window_balance or scan_balance, whichever `key` is: "same" (unset), or a
// balance. Throws InvalidInput that lists them.
std::optional<Balance> parse_own_balance(std::string_view key, std::string_view text);
// Reads a value of ParallelLayout::zero: 1, 2 or 3. Throws InvalidInput that lists them.
int parse_zero(std::string_view text);
// Reads a value of ParallelLayout::reshard: "all" (0), "no" (1), or a number of ranks. Throws InvalidInput.
int parse_reshard(std::string_view text);
std::string reshard_text(int reshard);
// Reads a value of ParallelLayout::sync_once: "step" or "micro_batch". Throws InvalidInput.
bool parse_sync(std::string_view text);
std::string sync_text(bool once);
// Reads a value of ParallelLayout::prefetch: 0 to kMostPrefetch. Throws InvalidInput.
inline constexpr int kUsualPrefetch = 1;  // two slots: one layer is at work, and the next one arrives
// Chosen: what comes sixteen layers ahead hides behind sixteen, and every slot is a layer's memory. Plans are
// checked for twice as many iterations as there are slots.
inline constexpr int kMostPrefetch = 16;
int parse_prefetch(std::string_view text);
// Reads a value of ParallelLayout::bucket: 1 to kMostBucket. Throws InvalidInput.
// Chosen: bodies of Repeats have a multiple of so many layers, which plans list; a whole stage of the largest
// models has fewer than twice as many.
inline constexpr int kMostBucket = 64;
int parse_bucket(std::string_view text);
// Reads a value of ParallelLayout::threshold, 0 to kMostThreshold elements. Throws InvalidInput.
// Chosen: beyond the largest table of any model, with which all of a unit stays whole.
inline constexpr std::int64_t kMostThreshold = std::int64_t{1} << 40;
std::int64_t parse_threshold(std::string_view text);

// Which ranks are neighbours. The first axis in the name varies fastest: with tp_cp_dp_pp and tp=8, ranks
// 0..7 are one tensor-parallel group.
enum class AxisOrder : std::uint8_t { tp_cp_dp_pp, cp_tp_dp_pp, tp_dp_cp_pp, tp_cp_pp_dp };
std::string to_string(AxisOrder order);             // "tp-cp-dp-pp"
AxisOrder parse_axis_order(std::string_view text);  // throws InvalidInput that lists them
const std::vector<AxisOrder>& axis_orders();

// How parameters of zero stage 3, which several ranks share, are gathered and given up, and their gradients
// reduced: layer by layer, unless it is said here. Other layouts have the defaults.
struct ShardChoices {
  // Gathered layers behind their forward pass: over so many of the ranks that share a layer its parameters
  // stay split until the backward pass, which gathers them from these. 1: they stay whole, and are not
  // gathered again; 0: they are given up, and gathered from all (reshard_after_forward of PyTorch's
  // fully_shard).
  int reshard = 0;
  // Gradients stay whole until the last micro-batch of a step, and are reduced once, in the update (no_sync).
  // Stage 1 does so anyway.
  bool sync_once = false;
  // How many layers ahead of the one at work parameters are gathered, forward and backward. Layers with the
  // same parts have one slot more than that, and a gather waits for its slot; with 0 a layer is gathered when
  // the one before it is done (set_modules_to_forward_prefetch, set_modules_to_backward_prefetch).
  int prefetch = kUsualPrefetch;
  // So many layers with the same parts, one behind the other, are gathered and reduced at once, as one flat
  // parameter with one padding; the last ones may be fewer (fully_shard of a list of modules). Experts
  // likewise. The ends are buckets of their own.
  int bucket = 1;
  // Tensors with fewer elements, as a tp rank has them, are not sharded: every rank keeps them whole, with
  // their states, and their gradients are all-reduced in the update. What is one product is one tensor: q, k
  // and v; gate and up; all experts of a rank.
  std::int64_t threshold = 0;
  bool operator==(const ShardChoices&) const = default;
};

// All else that a layout says beside its degrees.
struct LayoutChoices {
  int virtual_stages = 1;
  Strategy strategy;  // has no meaning if cp is 1
  // The core of layers whose window or chunk cuts the sequence, in place of the strategy's; unset: the same.
  // need_only brings such a layer what its queries see, and no more.
  std::optional<Core> window_core = {};
  // How the ring axis splits the rows of these layers, and those of layers with a recurrence; unset: as
  // Strategy::balance says. Rows of the residual stream go from home to home between layers that differ in it
  // (row_moves.h). Legal are contiguous and head_tail, which give every rank as many rows up to one. Of
  // contiguous rows a rank has one chunk: a window reaches one neighbour, and a scan has half the chunks.
  std::optional<Balance> window_balance = {}, scan_balance = {};
  // How layers with a recurrence pass their states on; has no meaning if cp is 1 or no layer has one. Where a
  // token is written there is nothing to scan: heads spreads the cached states over the cp ranks, and with
  // all_gather, which stands for every scan then, the rank of the token has them.
  StateScan scan = StateScan::all_gather;
  // What travels between cp ranks in place of keys and values of latent attention: heads, expanded where
  // their rows are at home; or latent, the rows, which each rank expands for the heads that it computes on.
  // It stands for Strategy::keys, which no layout sets. It has no meaning if cp is 1, and where a token is
  // written: then rows travel, since nothing is expanded.
  Strategy::Keys keys = Strategy::Keys::heads;
  ShardingGroup sharding = ShardingGroup::dp_shard_cp;
  AxisOrder order = AxisOrder::tp_cp_dp_pp;
  std::int64_t micro_batch = 1;  // sequences that a replica computes at once
  Recompute recompute;
  int loss_chunks = 1;  // head and loss take the rows in this many pieces, one after the other
  // The ZeRO stage, that is, what is sharded: 3 shards parameters, gradients and states; 2 gradients and
  // states; 1 states alone. Stages 1 and 2 gather the whole 16-bit parameters once a step. 0 stands for the
  // default: 3 without pipeline stages, and 1 with them, since pipeline stages keep whole parameters and
  // gradients for the step.
  int zero = 0;
  bool sequence_parallel = true;  // has no meaning if tp is 1
  // A dense MLP takes the rows in this many pieces, one after the other, so that only the intermediate rows
  // of one piece exist at a time. The backward pass computes gate and up of each piece again (TiledMLP of
  // Arctic Long Sequence Training, 2025).
  int mlp_chunks = 1;
  // What the layers keep for the backward pass is in host memory: each layer's part is sent there behind its
  // forward pass, and fetched ahead of its backward pass.
  bool host_activations = false;
  bool operator==(const LayoutChoices&) const = default;
};

// Calls visit(name, field) for each choice of a layout. Tests walk layouts with it: a field that is added
// does not compile until it has a name here.
template <class Visit>
void visit_choices(LayoutChoices& choices, ShardChoices& of_shards, const Visit& visit) {
  auto& [virtual_stages, strategy, window_core, window_balance, scan_balance, scan, keys, sharding, order,
         micro_batch, recompute, loss_chunks, zero, sequence_parallel, mlp_chunks, host_activations] =
      choices;
  visit("virtual_stages", virtual_stages), visit("strategy", strategy), visit("window_core", window_core);
  visit("window_balance", window_balance), visit("scan_balance", scan_balance), visit("scan", scan);
  visit("keys", keys), visit("sharding", sharding), visit("order", order), visit("micro_batch", micro_batch);
  visit("recompute", recompute), visit("loss_chunks", loss_chunks), visit("zero", zero);
  visit("sequence_parallel", sequence_parallel), visit("mlp_chunks", mlp_chunks);
  visit("host_activations", host_activations);
  auto& [reshard, sync_once, prefetch, bucket, threshold] = of_shards;
  visit("reshard", reshard), visit("sync_once", sync_once), visit("prefetch", prefetch);
  visit("bucket", bucket), visit("threshold", threshold);
}

// The degrees follow the rules of shared/mesh/parallel_dims.h, with ExpertRule::nested and etp = tp.
struct ParallelLayout : ParallelDegrees, LayoutChoices, ShardChoices {
  bool operator==(const ParallelLayout&) const = default;

  int world() const { return dp() * cp * tp * pp; }
  // The number of ranks over which the parameters of a dense layer are sharded. Those of experts are sharded
  // over 1/ep of them.
  int sharding_size() const { return dp_shard * (sharding == ShardingGroup::dp_shard_cp ? cp : 1); }
  int zero_stage() const { return zero != 0 ? zero : pp > 1 ? 1 : 3; }
  // Whether a rank keeps whole parameters, and whole gradients, during the step although several ranks share
  // them.
  bool keeps_whole_parameters() const { return zero_stage() < 3; }
  bool keeps_whole_gradients() const { return zero_stage() < 2 || sync_once; }
  bool has_shard_choices() const { return static_cast<const ShardChoices&>(*this) != ShardChoices{}; }
  // The number of tp ranks among which the rows between tensor-parallel regions are split.
  int row_ranks() const { return sequence_parallel ? tp : 1; }
};

// The text of a layout: "tp=8,cp=2,dp_shard=4,strategy=ring,balance=head_tail,recompute=full". It has the
// degrees above 1 and whatever differs from the defaults. If cp is 1 it does not mention the strategy.
std::string to_string(const ParallelLayout& layout);
// Reads what to_string() writes, the same in short (short_layout.h), the names of strategies that --strategy
// knows, and all of degree_keys(); dp means dp_shard, and etp can only be tp. Each key may come once. If
// `world` is given and dp_shard is missing or -1, dp_shard becomes what is left of the world. Throws
// InvalidInput that lists the keys, or says what does not fit.
ParallelLayout parse_parallel_layout(std::string_view text, int world = 0);

// Throws InvalidInput for degrees that ParallelDims accepts but no layout can have: an etp other than tp.
void require_plannable(const ParallelConfig& degrees);

// The layout with the degrees of a run that passed the rules of ParallelDims. Attention runs by Ulysses over
// ulysses_degree ranks, and by rings between those groups if ulysses_degree is less than cp. Throws
// InvalidInput for what no layout can have: experts on a mesh axis of their own, and etp other than tp.
ParallelLayout layout_of(const ParallelDims& dims);

// The number of micro-batches that a replica computes in a step. The layout must not be one that is refused.
std::int64_t accumulation(const Workload& workload, const ParallelLayout& layout);

// Why a model cannot be laid out like this, and the nearest layout that works.
using LayoutRefusal = DegreeRefusal;
// Checks everything but memory and the size of the world; returns nothing for a legal layout. Does not throw
// if model and workload are valid.
std::optional<LayoutRefusal> refuse(const Transformer& model, const Workload& workload,
                                    const ParallelLayout& layout);

// A mesh of the ranks 0 .. world-1 that has all the axes dp_replicate, dp_shard, cp, tp and pp, even those of
// size 1, in the order that `order` asks for, with the aliases of with_parallel_aliases().
Mesh build_mesh(const ParallelLayout& layout);
// The axes of this mesh. The last one varies fastest.
std::vector<MeshAxis> mesh_axes(const ParallelLayout& layout);

// How many layers each of the pp * virtual_stages stages has, in the order of the layers. They are as even as
// possible. If the layers do not divide evenly, the last stage gets one fewer, because it also has the head;
// and then the first stage, because it has the embedding. Prediction layers, which are not counted here,
// count among those of the last stage for this; it has one other at least.
std::vector<std::int64_t> stage_layers(const Transformer& model, const ParallelLayout& layout);

// Which layers one of these stages has: `count` ones from `first` on.
struct LayerRange {
  std::int64_t first = 0, count = 0;
};
LayerRange layers_of_stage(const Transformer& model, const ParallelLayout& layout, int stage);
// The kinds of these layers, in their order.
std::vector<int> kinds_of_stage(const Transformer& model, const ParallelLayout& layout, int stage);

// Of each stage the first one that has the same layers, with their rows at the same homes, and the same ends:
// the plans of both are alike but for their ranks. The first and the last stage are like no other.
std::vector<int> first_alike(const Transformer& model, const Workload& workload,
                             const ParallelLayout& layout);

// The number of forward passes, over all its stages, that pipeline rank `rank` of `ranks` makes before the
// first backward pass follows one. The schedules are 1F1B (Narayanan et al. 2019) if virtual_stages is 1, and
// else the interleaved one (Narayanan et al. 2021, as Megatron-LM has it). For example, rank 0 of 4 makes 3
// in 1F1B.
std::int64_t pipeline_warm_up(int rank, int ranks, int virtual_stages, std::int64_t micro_batches);
// The largest number of forward passes whose backward passes have not ended: their activations are kept.
std::int64_t in_flight(int rank, int ranks, int virtual_stages, std::int64_t micro_batches);

// What attention plans take of latent attention.
//   nothing   Keys and values are expanded before: the plans take k and v. Of training, unless rows travel.
//   rows      They take latent rows and kv_up, and expand the rows themselves. Of training where rows travel,
//             and of a prefill, whose cached rows are expanded with the new ones.
//   absorbed  They take latent rows and nothing else: queries were multiplied with the part of kv_up that
//             makes keys, and outputs will be with that which makes values. Of decoding.
enum class LatentUse : std::uint8_t { nothing, rows, absorbed };
// `nothing` without latent attention.
LatentUse latent_use(const Transformer& model, const Workload& workload, const ParallelLayout& layout);

// The attention problem of one micro-batch on one tp rank, in layers of one kind: its share of the heads, for
// all rows of the sequence. Where a token is written, the keys are those in its window. If there are fewer kv
// heads than tp ranks, several ranks hold the same one: kv_heads = max(1, kv_heads / tp). Latent rows are on
// all tp ranks; where queries are absorbed, they are one kv head.
AttentionProblem attention_problem(const Transformer& model, const Workload& workload,
                                   const ParallelLayout& layout, const LayerKind& kind);

// The strategy of layers whose window or chunk cuts the sequence; and of layers with that attention, with
// what travels in place of keys.
Strategy window_strategy(const ParallelLayout& layout);
Strategy strategy_of(const ParallelLayout& layout, const AttentionProblem& problem);

// The recurrence of one micro-batch on one tp rank: its share of the heads. In serving, of the new rows,
// which go on from a cached state. The model must have one.
RecurrenceProblem recurrence_problem(const Transformer& model, const Workload& workload,
                                     const ParallelLayout& layout);
// Whether this scan is one that layouts of the workload have: where a token is written, sequential and
// recursive_doubling mean the same as all_gather.
bool is_scan_of(const Workload& workload, StateScan scan);
// How it is computed: rows are where attention has them at home, unless scan_balance says otherwise.
RecurrenceStrategy recurrence_strategy(const ParallelLayout& layout);

// A layout's layers have their rows at one home or at two, since legal balances are two where layers differ:
// home 0 is that of Strategy::balance, home 1 the other one.
inline constexpr int kMostHomes = 2;
// The strategy that says where rows are at a home (AttentionSharding::home_q); that of one rank if cp is 1.
Strategy strategy_at_home(const ParallelLayout& layout, int home);
// The home of each layer of the model, and behind them that of the head. Layers without a mixer, or
// with a convolution, have their rows where the layer before them has, or the first other layer; the
// embedding is at home with the first layer, and the head and the loss with the last one.
std::vector<int> homes_of_layers(const Transformer& model, const Workload& workload,
                                 const ParallelLayout& layout);
// The homes of the layers of a stage, and behind them that of the rows that it hands on: rows cross the
// border of two stages, and gradients back, at the home of the layer behind the border.
std::vector<int> homes_of_stage(const Transformer& model, const Workload& workload,
                                const ParallelLayout& layout, int stage);

Hasher& hash(Hasher& hasher, const ParallelLayout& layout);

// ---- the parts of a layout's text, for those who show some of them and not others ----

// One key=value.
struct LayoutItem {
  std::string_view key;  // of degree_keys(), or another that parse_parallel_layout() takes
  std::string value;
  bool operator==(const LayoutItem&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const LayoutItem& item) {
  return out << item.key << '=' << item.value;
}
// What to_string(layout) joins with commas, in that order: the degrees above 1, and what differs from the
// defaults; tp=1 where there is nothing else to say.
std::vector<LayoutItem> items_of(const ParallelLayout& layout);
// The choices among these that differ from the defaults.
std::vector<LayoutItem> items_of(const ShardChoices& choices);

}  // namespace cp
