#include "shared/transformer/parallel_layout.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/transformer/layout_axes.h"

namespace cp {

ParallelLayout layout_of(const ParallelDims& dims) {
  if (dims.ep_enabled()) {
    if (dims.expert_rule() == ExpertRule::peer) {
      throw InvalidInput(
          str(dims.summary(), ": a layout has its experts among dp_shard * cp ranks, not on an axis of ",
              "their own; use ExpertRule::nested with dp_shard=", dims.dp_shard() * dims.ep()));
    }
    ParallelConfig config;
    config.tp = dims.tp(), config.etp = dims.etp();
    require_plannable(config);
  }
  ParallelLayout layout;
  static_cast<ParallelDegrees&>(layout) = dims.degrees();
  if (!dims.cp_enabled()) return layout;
  layout.strategy.ulysses_degree = dims.ulysses_degree();
  if (dims.ulysses_degree() == dims.cp()) layout.strategy = whole_ulysses(dims.cp());
  return layout;
}

std::int64_t accumulation(const Workload& workload, const ParallelLayout& layout) {
  return workload.global_batch / (layout.dp() * layout.micro_batch);
}

std::array<LayoutAxis, 5> axes_of(AxisOrder order) {
  using enum LayoutAxis;
  switch (order) {
    case AxisOrder::tp_cp_dp_pp:
      return {tp, cp, dp_shard, dp_replicate, pp};
    case AxisOrder::cp_tp_dp_pp:
      return {cp, tp, dp_shard, dp_replicate, pp};
    case AxisOrder::tp_dp_cp_pp:
      return {tp, dp_shard, dp_replicate, cp, pp};
    case AxisOrder::tp_cp_pp_dp:
      return {tp, cp, pp, dp_shard, dp_replicate};
  }
  CP_INVARIANT(false, "order ", static_cast<int>(order));
  return {};
}

int size_of(const ParallelLayout& layout, LayoutAxis axis) {
  switch (axis) {
    case LayoutAxis::dp_replicate:
      return layout.dp_replicate;
    case LayoutAxis::dp_shard:
      return layout.dp_shard;
    case LayoutAxis::cp:
      return layout.cp;
    case LayoutAxis::tp:
      return layout.tp;
    case LayoutAxis::pp:
      return layout.pp;
  }
  CP_INVARIANT(false, "axis ", static_cast<int>(axis));
  return 0;
}

std::vector<MeshAxis> mesh_axes(const ParallelLayout& layout) {
  static constexpr std::array<std::string_view, 5> kNames = {"dp_replicate", "dp_shard", "cp", "tp", "pp"};
  const std::array<LayoutAxis, 5> fastest_first = axes_of(layout.order);
  std::vector<MeshAxis> axes;
  for (auto axis = fastest_first.rbegin(); axis != fastest_first.rend(); ++axis)
    axes.push_back({std::string(kNames[static_cast<std::size_t>(*axis)]), size_of(layout, *axis)});
  return axes;
}

Mesh build_mesh(const ParallelLayout& layout) { return with_parallel_aliases(Mesh(mesh_axes(layout))); }

std::vector<std::int64_t> stage_layers(const Transformer& model, const ParallelLayout& layout) {
  const std::int64_t stages = std::int64_t{layout.pp} * layout.virtual_stages,
                     all = model.layers + model.prediction_layers, extra = all % stages;
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), all / stages);
  for (std::int64_t i = 0; i < extra; ++i) {
    const std::int64_t middle = stages - 2, at = i < middle ? i + 1 : 0;
    ++layers[static_cast<std::size_t>(at)];
  }
  // Of a stage that has nothing but prediction layers, others have one fewer: the largest, from the end on.
  layers.back() -= model.prediction_layers;
  for (; layers.back() < 1; ++layers.back()) --*std::max_element(layers.rbegin() + 1, layers.rend());
  return layers;
}

LayerRange layers_of_stage(const Transformer& model, const ParallelLayout& layout, int stage) {
  const std::vector<std::int64_t> stages = stage_layers(model, layout);
  const auto own = stages.begin() + stage;
  return {std::accumulate(stages.begin(), own, std::int64_t{0}), *own};
}

std::vector<int> kinds_of_stage(const Transformer& model, const ParallelLayout& layout, int stage) {
  const auto [first, count] = layers_of_stage(model, layout, stage);
  std::vector<int> kinds;
  for (std::int64_t layer = first; layer < first + count; ++layer) kinds.push_back(model.kind_of(layer));
  return kinds;
}

std::vector<int> first_alike(const Transformer& model, const Workload& workload,
                             const ParallelLayout& layout) {
  const int stages = layout.pp * layout.virtual_stages;
  const bool has_homes = layout.window_balance || layout.scan_balance;
  std::vector<std::pair<std::vector<int>, std::vector<int>>> kinds;  // with their homes
  std::vector<int> alike;
  for (int stage = 0; stage < stages; ++stage) {
    kinds.emplace_back(kinds_of_stage(model, layout, stage),
                       has_homes ? homes_of_stage(model, workload, layout, stage) : std::vector<int>{});
    alike.push_back(stage);
    for (int before = 1; before < stage && stage < stages - 1; ++before) {
      if (kinds[idx(before)] != kinds.back()) continue;
      alike.back() = before;
      break;
    }
  }
  return alike;
}

std::int64_t pipeline_warm_up(int rank, int ranks, int virtual_stages, std::int64_t micro_batches) {
  const std::int64_t behind = ranks - rank - 1;
  const std::int64_t all =
      virtual_stages == 1 ? behind : 2 * behind + std::int64_t{virtual_stages - 1} * ranks;
  return std::min(all, micro_batches * virtual_stages);
}

std::int64_t in_flight(int rank, int ranks, int virtual_stages, std::int64_t micro_batches) {
  return std::min(pipeline_warm_up(rank, ranks, virtual_stages, micro_batches) + 1,
                  micro_batches * virtual_stages);
}

LatentUse latent_use(const Transformer& model, const Workload& workload, const ParallelLayout& layout) {
  if (!model.latent) return LatentUse::nothing;
  switch (workload.phase) {
    case Phase::decode:
      return LatentUse::absorbed;
    case Phase::prefill:
      return LatentUse::rows;
    case Phase::training:
      break;
  }
  return layout.cp > 1 && layout.keys == Strategy::Keys::latent ? LatentUse::rows : LatentUse::nothing;
}

namespace {

// Of the sequences of a micro-batch: one list if all have the same documents, and none if each is one.
struct Documents {
  std::vector<std::int64_t> of_all;
  std::vector<std::vector<std::int64_t>> of_each;
};

Documents documents_of(const Workload& workload, const ParallelLayout& layout) {
  const auto& lists = workload.cu_seqlens_of_sequence;
  if (lists.empty()) return {workload.cu_seqlens, {}};
  // Of a layout that has more replicas than sequences there are fewer; such a layout is refused.
  const auto end = lists.begin() + std::min<std::int64_t>(layout.micro_batch, std::ssize(lists));
  if (std::any_of(lists.begin(), end, [&](const auto& list) { return list != lists.front(); }))
    return {{}, {lists.begin(), end}};
  return {lists.front().size() > 2 ? lists.front() : std::vector<std::int64_t>{}, {}};
}

}  // namespace

AttentionProblem attention_problem(const Transformer& model, const Workload& workload,
                                   const ParallelLayout& layout, const LayerKind& kind) {
  AttentionProblem problem;
  problem.batch = layout.micro_batch;
  problem.kv_len = workload.seq_len;
  problem.q_len = workload.phase == Phase::decode ? 1 : workload.seq_len - workload.cached;
  problem.q_heads = model.q_heads / layout.tp;
  problem.kv_heads = std::max<std::int64_t>(1, model.kv_heads / layout.tp);
  problem.head_dim = model.head_dim, problem.v_head_dim = model.v_head_dim();
  problem.dtype = workload.dtype;
  problem.causal = true;
  Documents documents = documents_of(workload, layout);
  problem.cu_seqlens = std::move(documents.of_all),
  problem.cu_seqlens_of_entry = std::move(documents.of_each);
  problem.sinks = model.sinks, problem.softcap = model.softcap;
  if (const double scale = model.numerics.score_scale; scale != 1)
    problem.softmax_scale = scale * problem.scale();
  const LatentUse use = latent_use(model, workload, layout);
  if (use != LatentUse::nothing) problem.latent = {model.latent->kv_rank, model.latent->rope_dim};
  if (use == LatentUse::absorbed) {
    problem.softmax_scale = problem.scale();
    problem.latent.absorbed = true;
    problem.kv_heads = 1, problem.head_dim = model.latent->kv_row(),
    problem.v_head_dim = model.latent->kv_rank;
  }
  if (workload.attention_dropout > 0)
    problem.dropout = {.probability = workload.attention_dropout, .all_heads = model.q_heads, .placed = true};
  // A window or a chunk that holds the whole sequence changes nothing.
  if (kind.window && *kind.window < workload.seq_len) problem.window = kind.window;
  if (kind.chunk && *kind.chunk < workload.seq_len) problem.chunk = kind.chunk;
  // The token that is written is the last one: of a window nothing else is cached.
  if (workload.phase == Phase::decode && problem.window && !problem.chunk)
    problem.kv_len = *problem.window, problem.window.reset();
  return problem;
}

Strategy window_strategy(const ParallelLayout& layout) {
  Strategy strategy = layout.strategy;
  strategy.balance = layout.window_balance.value_or(strategy.balance);
  if (!layout.window_core) return strategy;
  strategy.core = *layout.window_core;
  strategy.inner_ring = 1, strategy.rotation = Strategy::Rotation::exchange;
  strategy.slots = kLeastSlots, strategy.pieces = 1;
  return strategy;
}

Strategy strategy_of(const ParallelLayout& layout, const AttentionProblem& problem) {
  Strategy strategy = problem.window || problem.chunk ? window_strategy(layout) : layout.strategy;
  if (problem.has_latent() && !problem.latent.absorbed) strategy.keys = layout.keys;
  return strategy;
}

RecurrenceProblem recurrence_problem(const Transformer& model, const Workload& workload,
                                     const ParallelLayout& layout) {
  const Recurrence& sizes = *model.recurrence;
  RecurrenceProblem problem;
  problem.rule = sizes.rule, problem.dtype = workload.dtype;
  problem.batch = layout.micro_batch;
  problem.seq_len = workload.phase == Phase::decode ? 1 : workload.seq_len - workload.cached;
  problem.key_heads = sizes.key_heads / layout.tp, problem.value_heads = sizes.value_heads / layout.tp;
  problem.key_dim = sizes.key_dim, problem.value_dim = sizes.value_dim;
  // Queries are not scaled in Mamba-2.
  if (sizes.rule == RecurrenceRule::decay) problem.scale = 1;
  problem.cu_seqlens = documents_of(workload, layout).of_all;
  problem.cached_state = workload.phase != Phase::training;
  return problem;
}

bool is_scan_of(const Workload& workload, StateScan scan) {
  return workload.phase != Phase::decode || scan == StateScan::all_gather || scan == StateScan::heads;
}

RecurrenceStrategy recurrence_strategy(const ParallelLayout& layout) {
  RecurrenceStrategy strategy{layout.scan, {}};
  if (layout.cp == 1) return strategy;
  strategy.ulysses_degree = layout.strategy.ulysses_degree;
  strategy.ulysses_inner = layout.strategy.ulysses_inner;
  // head_tail_exchange moves queries for attention alone; at home its rows are contiguous.
  if (layout.strategy.balance.kind != Balance::Kind::head_tail_exchange)
    strategy.balance = layout.scan_balance.value_or(layout.strategy.balance);
  return strategy;
}

namespace {

// The balance of home 1: whichever is not that of all other layers.
Balance other_balance(const ParallelLayout& layout) {
  for (const std::optional<Balance>& own : {layout.window_balance, layout.scan_balance}) {
    if (own && *own != layout.strategy.balance) return *own;
  }
  return layout.strategy.balance;
}

}  // namespace

Strategy strategy_at_home(const ParallelLayout& layout, int home) {
  if (layout.cp == 1) return {};
  Strategy strategy = layout.strategy;
  if (home > 0) strategy.balance = other_balance(layout);
  return strategy;
}

std::vector<int> homes_of_layers(const Transformer& model, const Workload& workload,
                                 const ParallelLayout& layout) {
  std::vector<int> homes(static_cast<std::size_t>(model.layers) + 1);
  const Balance other = other_balance(layout);
  if (layout.cp == 1 || other == layout.strategy.balance) return homes;
  // Of each kind; none: where the layer before has its rows.
  std::vector<std::optional<int>> of_kinds;
  for (const LayerKind& kind : model.kinds) {
    std::optional<int>& home = of_kinds.emplace_back();
    if (kind.mixer == Mixer::recurrence) home = recurrence_strategy(layout).balance == other ? 1 : 0;
    if (kind.mixer != Mixer::attention) continue;
    const AttentionProblem problem = attention_problem(model, workload, layout, kind);
    home = strategy_of(layout, problem).balance == other ? 1 : 0;
  }
  const auto of_layer = [&](std::int64_t layer) {
    return of_kinds[static_cast<std::size_t>(model.kind_of(layer))];
  };
  std::int64_t first = 0;
  while (first < model.layers && !of_layer(first)) ++first;
  int home = first < model.layers ? *of_layer(first) : 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    home = of_layer(layer).value_or(home);
    homes[static_cast<std::size_t>(layer)] = home;
  }
  homes.back() = home;
  return homes;
}

std::vector<int> homes_of_stage(const Transformer& model, const Workload& workload,
                                const ParallelLayout& layout, int stage) {
  const std::vector<int> all = homes_of_layers(model, workload, layout);
  const auto [first, count] = layers_of_stage(model, layout, stage);
  return {all.begin() + first, all.begin() + first + count + 1};
}

Hasher& hash(Hasher& hasher, const ParallelLayout& layout) {
  hasher.add(layout.dp_replicate)
      .add(layout.dp_shard)
      .add(layout.cp)
      .add(layout.tp)
      .add(layout.pp)
      .add(layout.ep);
  hasher.add(layout.virtual_stages)
      .add(static_cast<int>(layout.sharding))
      .add(static_cast<int>(layout.order));
  hasher.add(layout.micro_batch).add(static_cast<int>(layout.recompute.kind)).add(layout.recompute.every);
  hasher.add(layout.loss_chunks).add(layout.zero).add(layout.sequence_parallel ? 1 : 0);
  hasher.add(layout.mlp_chunks).add(layout.host_activations ? 1 : 0);
  if (layout.scan != StateScan::all_gather) hasher.add(name(layout.scan));
  if (layout.keys != Strategy::Keys::heads) hasher.add(std::string_view("keys")).add(name(layout.keys));
  if (layout.window_core) hasher.add(std::string_view("windows")).add(name(*layout.window_core));
  if (layout.window_balance)
    hasher.add(std::string_view("window_balance")).add(std::string_view(to_string(*layout.window_balance)));
  if (layout.scan_balance)
    hasher.add(std::string_view("scan_balance")).add(std::string_view(to_string(*layout.scan_balance)));
  // Digests of layouts without them stay what they were.
  if (layout.reshard != 0 || layout.sync_once)
    hasher.add(std::string_view("timing")).add(layout.reshard).add(layout.sync_once ? 1 : 0);
  if (layout.prefetch != kUsualPrefetch) hasher.add(std::string_view("prefetch")).add(layout.prefetch);
  if (layout.bucket != 1) hasher.add(std::string_view("bucket")).add(layout.bucket);
  if (layout.threshold != 0) hasher.add(std::string_view("threshold")).add(layout.threshold);
  return hash(hasher, layout.strategy);
}

}  // namespace cp
