// ParallelLayout: how a model is laid out over GPUs: degrees, strategy of attention, and the choices that go
// with them.
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
//   pp   Pipeline parallelism makes stages of consecutive layers; each rank has virtual_stages of them, in a
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
#include "shared/transformer/model.h"
#include "shared/transformer/workload.h"

namespace cp {

// What a backward pass computes again instead of keeping it.
//   none       everything that it needs is kept
//   selective  norms, activation function and gathered inputs again: no product, no attention
//   full       the whole layer again, from its input
//   every      every `every`-th layer like full, the others like none
struct Recompute {
  enum class Kind : std::uint8_t { none, selective, full, every };
  Kind kind = Kind::none;
  int every = 1;
  bool operator==(const Recompute&) const = default;
};
std::string to_string(const Recompute& recompute);  // "none", "selective", "full", "every:2"
Recompute parse_recompute(std::string_view text);   // throws InvalidInput that lists them
// Reads ParallelLayout::zero: 1, 2 or 3. Throws InvalidInput that lists them.
int parse_zero(std::string_view text);

// Which ranks are neighbours: the first axis varies fastest.
enum class AxisOrder : std::uint8_t { tp_cp_dp_pp, cp_tp_dp_pp, tp_dp_cp_pp, tp_cp_pp_dp };
std::string to_string(AxisOrder order);             // "tp-cp-dp-pp"
AxisOrder parse_axis_order(std::string_view text);  // throws InvalidInput that lists them
const std::vector<AxisOrder>& axis_orders();

// The degrees are those of shared/mesh/parallel_dims.h, with its rules: ExpertRule::nested, and etp = tp.
struct ParallelLayout : ParallelDegrees {
  int virtual_stages = 1;
  Strategy strategy;  // meaningless when cp is 1
  ShardingGroup sharding = ShardingGroup::dp_shard_cp;
  AxisOrder order = AxisOrder::tp_cp_dp_pp;
  std::int64_t micro_batch = 1;  // sequences of a replica at once
  Recompute recompute;
  int loss_chunks = 1;  // head and loss are computed for this many pieces of the rows, one after the other
  // What is sharded: 3 parameters, 2 gradients and states, 1 states alone; whole 16-bit parameters are
  // gathered once a step then. 0: 3 without stages, and 1 with them, which keep whole parameters and
  // gradients.
  int zero = 0;
  bool sequence_parallel = true;  // meaningless when tp is 1
  // A dense MLP is computed for this many pieces of the rows, one after the other; backward, each piece
  // computes its gate and up again (TiledMLP of Arctic Long Sequence Training, 2025).
  int mlp_chunks = 1;
  // What layers keep for the backward pass lies in host memory: sent there behind each layer, and fetched
  // ahead of its backward pass.
  bool host_activations = false;
  bool operator==(const ParallelLayout&) const = default;

  int world() const { return dp() * cp * tp * pp; }
  // Ranks over which the parameters of a dense layer are sharded; those of experts over 1/ep of them.
  int sharding_size() const { return dp_shard * (sharding == ShardingGroup::dp_shard_cp ? cp : 1); }
  int zero_stage() const { return zero != 0 ? zero : pp > 1 ? 1 : 3; }
  // Of parameters that are shared: whether whole ones, and whole gradients, stay for the step.
  bool keeps_whole_parameters() const { return zero_stage() < 3; }
  bool keeps_whole_gradients() const { return zero_stage() < 2; }
  // The tp ranks that rows between tensor-parallel regions are split over.
  int row_ranks() const { return sequence_parallel ? tp : 1; }
};

// "tp=8,cp=2,dp_shard=4,strategy=ring,balance=head_tail,recompute=full": the degrees above 1, and what
// differs from the defaults. With cp 1 nothing is said of the strategy.
std::string to_string(const ParallelLayout& layout);
// Takes what to_string gives, names of strategies as --strategy has them, and all of degree_keys(): dp is
// dp_shard, and etp can only be tp. Every key at most once. Where dp_shard is not given, or -1, and `world`
// is given, it is what is left of the world. Throws InvalidInput that lists the keys, or says what does not
// fit.
ParallelLayout parse_parallel_layout(std::string_view text, int world = 0);

// Throws InvalidInput for degrees that ParallelDims takes and no layout has: an etp other than tp.
void require_plannable(const ParallelConfig& degrees);

// The layout that has the degrees of a run which passed ParallelDims' rules: attention by Ulysses over
// ulysses_degree ranks, and rings between where that is less than cp. Throws InvalidInput for what no layout
// has: experts on a mesh axis of their own, and etp other than tp.
ParallelLayout layout_of(const ParallelDims& dims);

// Micro-batches of a replica in a step. Only of a layout that is not refused.
std::int64_t accumulation(const Workload& workload, const ParallelLayout& layout);

// Why a model cannot be laid out so, and the nearest layout that works.
using LayoutRefusal = DegreeRefusal;
// Everything but memory, and the size of the world. Never throws for a valid model and workload.
std::optional<LayoutRefusal> refuse(const Transformer& model, const Workload& workload,
                                    const ParallelLayout& layout);

// Axes dp_replicate, dp_shard, cp, tp, pp, all of them, over ranks 0 .. world-1: neighbours as `order` says.
// With the aliases of with_parallel_aliases().
Mesh build_mesh(const ParallelLayout& layout);
// Its axes: the last one varies fastest.
std::vector<MeshAxis> mesh_axes(const ParallelLayout& layout);

// The layers of each of the pp * virtual_stages stages, in order of the layers: as even as can be; where they
// do not divide, the last stage, which has the head, and then the first one, which has the embedding, get
// fewer.
std::vector<std::int64_t> stage_layers(const Transformer& model, const ParallelLayout& layout);

// Forward passes, of all its stages, that pipeline rank `rank` of `ranks` makes before the first backward
// pass follows one: of 1F1B (Narayanan et al. 2019), and of the interleaved schedule (Narayanan et al. 2021,
// as Megatron-LM has it).
std::int64_t pipeline_warm_up(int rank, int ranks, int virtual_stages, std::int64_t micro_batches);
// Those whose backward passes have not ended, at most.
std::int64_t in_flight(int rank, int ranks, int virtual_stages, std::int64_t micro_batches);

// The attention of one micro-batch on one tp rank: its heads of all rows of the sequence. kv heads that tp
// ranks share are replicated: kv_heads = max(1, kv_heads / tp).
AttentionProblem attention_problem(const Transformer& model, const Workload& workload,
                                   const ParallelLayout& layout);

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

}  // namespace cp
