#include "sim/proof/step/scale_down.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "shared/base/index.h"
#include "shared/context_parallel/strategy.h"

namespace cp::sim {
namespace {

// Chosen: heads for eight tp ranks, of a size that vector instructions do not divide; a vocabulary that no
// number of ranks divides; widths that differ from each other, so that what is taken for another shows.
constexpr std::int64_t kHidden = 48, kHeads = 8, kHeadDim = 10, kIntermediate = 56, kVocab = 211,
                       kExperts = 8, kWindow = 20;
// Chosen: rows before an activation have about the variance 1.
constexpr double kActivationLimit = 1;
// Chosen: positions that have one temperature.
constexpr double kTemperatureFloor = 8;
// Layers: enough for four stages.
constexpr std::int64_t kLayers = 4;

std::int64_t at_most(std::int64_t value, std::int64_t most) { return std::min(value, most); }
// At least `few` of the `all` that the model has, so that `ranks` share them evenly if they do in the model.
std::int64_t few_of(std::int64_t all, std::int64_t few, std::int64_t ranks) {
  return at_most(all, all % ranks == 0 ? (few + ranks - 1) / ranks * ranks : few);
}

// So many layers that each stage has one, or as many as `recompute` counts.
std::int64_t layers_of(const ParallelLayout& layout) {
  return std::max(kLayers, std::int64_t{layout.pp} * layout.virtual_stages * layout.recompute.every);
}

// The fewest first layers among which every kind is, and at least `least`.
std::vector<LayerKind> first_layers(const Transformer& model, std::int64_t least) {
  std::set<int> seen;
  std::vector<LayerKind> layers;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (std::ssize(layers) >= least && std::ssize(seen) == std::ssize(model.kinds)) break;
    seen.insert(model.kind_of(layer));
    LayerKind& kind = layers.emplace_back(model.kinds[idx(model.kind_of(layer))]);
    if (kind.window) kind.window = at_most(*kind.window, kWindow);
    if (kind.chunk) kind.chunk = at_most(*kind.chunk, kWindow);
  }
  return layers;
}

// All divisors of a number, ascending.
std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) all.push_back(divisor);
  }
  return all;
}

class LayoutList {
 public:
  LayoutList(const Transformer& model, const ProofWorkload& workload) : model_(model), workload_(workload) {}

  void add_degrees(const ParallelLayout& degrees) {
    AttentionProblem problem;
    problem.q_len = problem.kv_len = workload_.seq_len, problem.q_heads = model_.q_heads,
    problem.kv_heads = model_.kv_heads, problem.cu_seqlens = workload_.cu_seqlens;
    std::vector<Strategy> strategies{{}};
    if (degrees.cp > 1) strategies = standard_strategies(problem, degrees.cp);
    for (const Strategy& strategy : strategies) {
      ParallelLayout layout = degrees;
      layout.strategy = strategy;
      add_scans(layout);
    }
  }

  std::vector<ParallelLayout> take() && { return std::move(all_); }

 private:
  void add_scans(const ParallelLayout& layout) {
    const bool scans = layout.cp > 1 && model_.recurrence;
    for (const StateScan scan : state_scans()) {
      ParallelLayout with = layout;
      if (scans) with.scan = scan;
      add_homes(with);
      if (!scans) break;
    }
  }

  void add_homes(const ParallelLayout& layout) {
    add_sharding(layout);
    const Balance head_tail{Balance::Kind::head_tail}, contiguous{};
    const Balance& balance = layout.strategy.balance;
    if (layout.cp == 1 || !(balance == head_tail || balance == contiguous)) return;
    const bool windows = std::any_of(model_.kinds.begin(), model_.kinds.end(),
                                     [](const LayerKind& kind) { return kind.window || kind.chunk; });
    if (!windows && !model_.recurrence) return;
    ParallelLayout with = layout;
    if (windows) with.window_balance = balance == head_tail ? contiguous : head_tail;
    if (model_.recurrence) with.scan_balance = balance == head_tail ? contiguous : head_tail;
    add_sharding(with);
  }

  void add_sharding(const ParallelLayout& layout) {
    for (const int zero : {0, 1, 2}) {
      ParallelLayout with = layout;
      with.zero = zero;
      add(vary(with));
      if (layout.sharding_size() == 1) return;
    }
  }

  // Choices of which any may be made with any other take turns.
  ParallelLayout vary(ParallelLayout layout) {
    const std::size_t turn = turn_++;
    static constexpr Recompute kRecompute[] = {{Recompute::Kind::none, 1},
                                               {Recompute::Kind::selective, 1},
                                               {Recompute::Kind::full, 1},
                                               {Recompute::Kind::every, 2}};
    layout.recompute = kRecompute[turn % std::size(kRecompute)];
    layout.loss_chunks = turn % 3 == 1 ? 3 : 1;
    layout.mlp_chunks = !model_.experts && turn % 5 == 2 ? 2 : 1;
    layout.host_activations = turn % 7 == 3;
    layout.sequence_parallel = layout.tp == 1 || turn % 2 == 0;
    layout.order = axis_orders()[turn % axis_orders().size()];
    layout.micro_batch = turn % 4 == 3 ? 2 : 1;
    // In two of three, where there are layers for it.
    if (layout.pp > 1 && turn % 3 != 0 && std::int64_t{2} * layout.pp <= model_.layers)
      layout.virtual_stages = 2;
    if (layout.cp > 1 && model_.latent && turn % 2 == 1) layout.keys = Strategy::Keys::latent;
    if (layout.cp > 1 && turn % 6 == 5) layout.sharding = ShardingGroup::dp_shard;
    if (layout.zero_stage() == 3 && layout.sharding_size() > 1) {
      layout.sync_once = turn % 3 == 0;
      const bool halves = layout.sharding_size() > 2 && layout.sharding_size() % 2 == 0;
      if (turn % 4 == 1) layout.reshard = halves && turn % 8 == 5 ? 2 : 1;
      if (layout.reshard != 1 && turn % 5 < 2) layout.prefetch = turn % 5 == 0 ? 2 : 0;
      // Norms are below it, and in half of these turns all but the largest matrices.
      if (turn % 7 % 3 == 1) layout.threshold = turn % 7 == 1 ? 100 : 3000;
      if (model_.prediction_layers == 0 && turn % 8 > 4) layout.bucket = turn % 8 == 6 ? 3 : 2;
    }
    return layout;
  }

  void add(const ParallelLayout& layout) {
    if (!refuse(model_, proof_request(model_, layout, workload_).workload, layout)) all_.push_back(layout);
  }

  const Transformer& model_;
  const ProofWorkload& workload_;
  std::size_t turn_ = 0;
  std::vector<ParallelLayout> all_;
};

}  // namespace

Transformer scaled_down(const Transformer& model, const ParallelLayout& layout) {
  Transformer small = model;
  // Convolutions are dealt by their columns.
  small.hidden =
      model.convolution ? few_of(model.hidden, kHidden, layout.tp) : at_most(model.hidden, kHidden);
  // Gemma multiplies looked-up rows with the root of the width.
  if (const double root = std::sqrt(static_cast<double>(model.hidden));
      model.numerics.embedding_scale == root)
    small.numerics.embedding_scale = std::sqrt(static_cast<double>(small.hidden));
  const std::int64_t tp = layout.tp, split = tp * (layout.cp > 1 ? layout.strategy.ulysses_degree : 1);
  // Each rank has a kv head for each of the pieces that travel.
  const std::int64_t pieces = layout.cp > 1 ? layout.strategy.pieces : 1;
  const std::int64_t heads = few_of(model.q_heads, kHeads, split * pieces);
  small.kv_heads = std::max<std::int64_t>(1, model.kv_heads * heads / model.q_heads);
  if (pieces > 1 && model.kv_heads % (split * pieces) == 0 && heads % (split * pieces) == 0)
    small.kv_heads = std::max(small.kv_heads, split * pieces);
  // Groups of as many heads in each, which the layout can split.
  if (heads / small.kv_heads * small.kv_heads % split != 0 ||
      (small.kv_heads % tp != 0 && tp % small.kv_heads != 0))
    small.kv_heads = std::gcd(heads, std::gcd(small.kv_heads, tp));
  small.q_heads = heads / small.kv_heads * small.kv_heads;
  small.head_dim = at_most(model.head_dim, kHeadDim);
  small.intermediate = few_of(model.intermediate, kIntermediate, tp);
  small.vocab = at_most(model.vocab, kVocab);
  // So that limits hold somewhere, and several temperatures come up in a proof's sequence.
  small.numerics.activation_limit = std::min(model.numerics.activation_limit, kActivationLimit);
  small.numerics.temperature.floor = std::min(model.numerics.temperature.floor, kTemperatureFloor);
  if (model.latent) {
    Latent& latent = *small.latent;
    latent.q_rank = at_most(latent.q_rank, 22), latent.kv_rank = at_most(latent.kv_rank, 18);
    latent.rope_dim = at_most(latent.rope_dim, 4), latent.v_head_dim = at_most(latent.v_head_dim, 6);
  }
  if (model.experts) {
    Experts& experts = *small.experts;
    experts.count = few_of(experts.count, kExperts, layout.ep);
    experts.top_k = at_most(experts.top_k, 2);
    // The router's groups, of as many experts in each, as far as so few experts make some.
    RouterRule& router = small.numerics.router;
    router.groups = std::gcd(router.groups, experts.count);
    const std::int64_t needed = (experts.top_k * router.groups + experts.count - 1) / experts.count;
    router.top_groups = std::clamp(model.numerics.router.top_groups, needed, router.groups);
    experts.intermediate = few_of(experts.intermediate, 24, tp);
    experts.shared = few_of(experts.shared, 32, tp);
  }
  if (model.recurrence) {
    Recurrence& r = *small.recurrence;
    // Half as many key heads as value heads at most, though models have fewer (Mamba-2): ranks split them.
    const std::int64_t ranks = tp * (layout.cp > 1 && layout.scan == StateScan::heads ? layout.cp : 1);
    const std::int64_t groups = std::min<std::int64_t>(2, r.value_heads / r.key_heads);
    r.key_heads = few_of(r.key_heads, kHeads / groups, ranks), r.value_heads = r.key_heads * groups;
    r.key_dim = at_most(r.key_dim, 6), r.value_dim = at_most(r.value_dim, 10);
  }
  const std::vector<LayerKind> layers = first_layers(model, layers_of(layout));
  small.layers = std::ssize(layers);
  small.kinds = {LayerKind{}}, small.order.clear();
  set_layers(small, layers);
  return small;
}

void make_room_at_experts(StepRequest& request) {
  if (request.model.experts)
    request.workload.expert_imbalance = static_cast<double>(request.model.experts->count);
}

StepRequest proof_request(const Transformer& model, const ParallelLayout& layout,
                          const ProofWorkload& workload) {
  StepRequest request{model, {}, layout};
  request.workload.seq_len = workload.seq_len, request.workload.dtype = workload.dtype;
  request.workload.cu_seqlens = workload.cu_seqlens;
  // Interleaved stages need as many micro-batches as ranks (Narayanan et al. 2021).
  const std::int64_t micro_batches = layout.virtual_stages > 1 ? layout.pp : 2;
  request.workload.global_batch = micro_batches * layout.dp() * layout.micro_batch;
  make_room_at_experts(request);
  if (workload.expert_imbalance) request.workload.expert_imbalance = *workload.expert_imbalance;
  request.workload.attention_dropout = workload.attention_dropout;
  return request;
}

std::vector<ParallelLayout> proof_layouts(const Transformer& model, int ranks,
                                          const ProofWorkload& workload) {
  LayoutList list(model, workload);
  for (const int tp : divisors(ranks)) {
    for (const int cp : divisors(ranks / tp)) {
      for (const int pp : divisors(ranks / tp / cp)) {
        for (const int shard : divisors(ranks / tp / cp / pp)) {
          for (const int ep : divisors(model.experts ? shard * cp : 1)) {
            ParallelLayout layout;
            layout.tp = tp, layout.cp = cp, layout.pp = pp, layout.dp_shard = shard, layout.ep = ep;
            layout.dp_replicate = ranks / tp / cp / pp / shard;
            list.add_degrees(layout);
          }
        }
      }
    }
  }
  return std::move(list).take();
}

}  // namespace cp::sim
