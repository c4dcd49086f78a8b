// What a micro-batch takes at least whose layers gather their parameters and scatter their gradients.
//
// Sums over all layers, which bound.cc has, take it that everything that is gathered may run beside anything
// that is computed. Plans have two slots for each kind of unit, and one place for gradients that are cast
// before they are scattered. So gathers run ahead of kernels by a layer or two, and what is scattered falls
// behind them by as much: where layers with much to gather follow one another (experts), they wait, although
// others (recurrences, attention) have time to spare. Three queues are walked here, as plans fill them
// (unshard_writer.h, step_plan.cc): kernels, gathers, and what is cast and scattered. Each step begins when
// those before it in its queue, and those that it needs, have ended. All times are lower bounds, and a later
// beginning ends nothing earlier, so the end is one, too.
#include <algorithm>
#include <array>
#include <vector>

#include "shared/base/index.h"
#include "shared/transformer/layer_loops.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

namespace {

// What the layers with the same parts, or all experts, share: slots of what is gathered, and the place of
// gradients.
struct Unit {
  // Of one layer. What is gathered is cast before, on the same stream, and gradients before they are
  // scattered; without casts:
  double cast_shard_ns = 0, gather_ns = 0, cast_ns = 0, scatter_ns = 0;
  double port_gather_ns = 0, port_scatter_ns = 0;  // of that, what the GPU's port to the network is busy
  std::array<double, 2> free_ns{};                 // when the layers of the last two gathers are done
  double taken_ns = 0;                             // when the last gradients have been cast

  bool gathers() const { return gather_ns > 0; }
  // Gathers behind what the queue has so far, into the slot of the layer before the last.
  void gather(double& queue_ns) const {
    if (gathers()) queue_ns = std::max(queue_ns, free_ns[0]) + cast_shard_ns + gather_ns;
  }
  void frees(double ns) { free_ns = {free_ns[1], ns}; }
};

// Gathers and scatters of one unit that share the port to the network slow each other down. While both are
// under way, each has what it asks of the port, or half of it, or what the other one leaves (port_loads.h:
// max-min fair). So a scatter advances by a share s of its speed alone then, and a gather by a share g. From
// the end of a layer on, until n layers later their gradients are cast, there are n scatters, and n - 1
// gathers: that of the next layer may have been there before. Of these gathers' time alone, G, as much may
// pass while nothing is scattered as other things take on the stream that scatters, and the rest is beside
// scatters: that takes rest / g, and these (1 - s) rest / g longer. Or they come one after the other, where
// that takes less: hence `share_`.
class Port {
 public:
  Port() = default;  // of transfers that do not meet
  Port(const Unit& unit, double gpus_at_once) : gather_ns_(unit.gather_ns) {
    if (unit.gather_ns <= 0 || unit.scatter_ns <= 0) return;
    const double gather = gpus_at_once * unit.port_gather_ns / unit.gather_ns,
                 scatter = gpus_at_once * unit.port_scatter_ns / unit.scatter_ns;
    if (gather + scatter <= 1) return;
    const double gathers = std::min(1.0, std::max(0.5, 1 - scatter) / gather),
                 scatters = std::min(1.0, std::max(0.5, 1 - gather) / scatter);
    share_ = kSlack * std::min(1.0, (1 - scatters) / gathers);
  }

  // At the beginning of the backward pass, when the last two layers may have been gathered.
  void begin(double ns) { ns_ = ns - share_ * gather_ns_; }
  // A layer of the unit is gathered, and is done.
  void gathers() { ns_ += share_ * gather_ns_; }
  void ends(double ns) { ns_ = std::max(ns_, ns); }
  // What else the stream does that scatters, and a scatter of the unit.
  void other(double ns) { ns_ += (1 - share_) * ns; }
  void scatters(double ns) { ns_ += ns; }
  // All this has ended by then at least.
  double ns() const { return ns_ - share_ * gather_ns_; }

 private:
  double gather_ns_ = 0, share_ = 0, ns_ = 0;
};

// The stream that casts and scatters.
class Scattering {
 public:
  Scattering(const Unit* of_port, const Port& port) : of_port_(of_port), port_(port) {}
  Port& port() { return port_; }
  double ns() const { return ns_; }
  // The head's gradients, at the beginning of the backward pass.
  void begin(double now_ns, double scatter_ns) {
    ns_ = now_ns + scatter_ns;
    port_.begin(now_ns), port_.other(scatter_ns);
  }
  // Those of one layer, that are complete by then.
  void add(Unit& unit, double complete_ns) {
    if (unit.scatter_ns <= 0) return;
    port_.other(unit.cast_ns);
    const double cast_until_ns = std::max(std::max(ns_, complete_ns) + unit.cast_ns, port_.ns());
    if (unit.cast_ns > 0) unit.taken_ns = cast_until_ns;
    ns_ = cast_until_ns + unit.scatter_ns;
    &unit == of_port_ ? port_.scatters(unit.scatter_ns) : port_.other(unit.scatter_ns);
  }

 private:
  const Unit* of_port_;
  Port port_;
  double ns_ = 0;
};

}  // namespace

double StepBound::sharded_ns(const ParallelLayout& layout, const Shared& shared,
                             const std::vector<Pass>& of_kinds, double head_ns,
                             const AttentionTimes* replayed) const {
  const Transformer& model = question_.model;
  // A layer begins with a norm, which needs its weights, and ends backward with that norm's gradient, the
  // last of its gradients. Without one other kernels come first and last, and nothing is claimed.
  if (layout.sharding_size() == 1 || !model.norms_before || model.prediction_layers > 0) return 0;
  // Of what comes from fewer ranks backward, nothing is claimed either.
  if (layout.reshard != 0) return 0;
  // Of fewer slots than two it holds; of more it does not.
  if (layout.prefetch > kUsualPrefetch) return 0;
  // Buckets are gathered and scattered at other layers than those that are walked.
  if (layout.bucket > 1) return 0;
  // What comes first and last in a layer, its norm, is not gathered with a threshold.
  if (layout.threshold > 0) return 0;
  const bool gathers = !layout.keeps_whole_parameters(), scatters = !layout.keeps_whole_gradients();
  const auto unit_of = [&](const Sharding& sharding, std::int64_t parameters) {
    Unit unit;
    if (gathers && sharding.gather_ns > 0) {
      unit.cast_shard_ns = cast_of_shard_ns(layout, parameters);
      unit.gather_ns = sharding.gather_ns - unit.cast_shard_ns, unit.port_gather_ns = sharding.port_gather_ns;
    }
    if (scatters && sharding.scatter_ns > 0) {
      unit.cast_ns = cast_of_gradients_ns(layout, parameters);
      unit.scatter_ns = sharding.scatter_ns - unit.cast_ns, unit.port_scatter_ns = sharding.port_scatter_ns;
    }
    return unit;
  };
  ByParts<Unit> dense;
  for (const LayerParts parts : kLayerParts) {
    if (layers_of_parts_[parts] == 0) continue;
    Sharding of_layer = shared.shards[parts];
    if (parts.mlp == Mlp::experts) {
      const Sharding& of_experts = shared.expert_shards;
      of_layer.gather_ns -= of_experts.gather_ns, of_layer.port_gather_ns -= of_experts.port_gather_ns;
      of_layer.scatter_ns -= of_experts.scatter_ns, of_layer.port_scatter_ns -= of_experts.port_scatter_ns;
    }
    dense[parts] = unit_of(of_layer, shared.sizes.layer[parts] - shared.sizes.small_layer[parts]);
  }
  Unit experts = unit_of(shared.expert_shards, shared.sizes.expert_layer - shared.sizes.small_experts);
  // The one with most to gather.
  const Unit* largest = &experts;
  for (const LayerParts parts : kLayerParts) {
    if (dense[parts].gather_ns > largest->gather_ns) largest = &dense[parts];
  }
  const Cluster& cluster = question_.cluster;
  // Beside kernels both ask for less where the cluster says so, and nothing is claimed.
  Scattering scattering(largest,
                        cluster.transfer.beside_kernels < 1
                            ? Port()
                            : Port(*largest, std::min(cluster.network.gpus_per_nic, cluster.node.gpus)));

  std::vector<int> homes;  // empty: all at one
  if (replayed != nullptr && (layout.window_balance || layout.scan_balance))
    homes = homes_of_stage(model, question_.workload, layout, 0);
  const auto moved_ns = [&](std::int64_t layer, bool backward) {
    if (homes.empty() || layer + 1 == model.layers || homes[idx(layer)] == homes[idx(layer + 1)]) return 0.0;
    return kSlack * replayed->move_ns[idx(homes[idx(layer + (backward ? 1 : 0))])];
  };
  const bool hides_moves = layout.recompute.kind != Recompute::Kind::none || layout.mlp_chunks > 1;

  double gathered_ns = gathers ? shared.table.gather_ns : 0;
  double now_ns = gathered_ns + end_ns(layout, shared.tokens, EndPart::embedding);
  const auto at = [](const LayerReading::MaybeWay& way, const Pass& pass) {
    return way ? kSlack * way->at(pass.mixer_forward_ns, pass.mixer_backward_ns) : 0;
  };
  struct Gathered {
    double dense_ns = 0, experts_ns = 0;
  };
  const auto gather = [&](LayerParts parts) {
    dense[parts].gather(gathered_ns);
    Gathered gathered{dense[parts].gathers() ? gathered_ns : 0, 0};
    if (parts.mlp != Mlp::experts || !experts.gathers()) return gathered;
    experts.gather(gathered_ns);
    gathered.experts_ns = gathered_ns;
    return gathered;
  };

  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const int kind = model.kind_of(layer);
    const LayerParts parts = model.parts_of(model.kinds[idx(kind)]);
    const Pass& pass = of_kinds[idx(kind)];
    const LayerReading& read = this->read(layout, shared, idx(kind), Read::forward);
    const Gathered gathered = gather(parts);
    // A way from what reads weights begins when these are there.
    const double end_ns =
        std::max({now_ns + pass.forward_ns, gathered.dense_ns + at(read.from_weights, pass),
                  parts.mlp == Mlp::experts ? gathered.experts_ns + at(read.from_experts, pass) : 0});
    dense[parts].frees(
        std::max(now_ns + at(read.to_weights, pass), gathered.dense_ns + at(read.within_weights, pass)));
    if (parts.mlp == Mlp::experts)
      experts.frees(
          std::max(now_ns + at(read.to_experts, pass), gathered.experts_ns + at(read.within_experts, pass)));
    now_ns = end_ns + moved_ns(layer, false);
  }

  if (gathers) gathered_ns += shared.head_shards.gather_ns, now_ns = std::max(now_ns, gathered_ns);
  now_ns += head_ns;
  if (scatters) scattering.begin(now_ns, shared.head_shards.scatter_ns);

  for (std::int64_t layer = model.layers - 1; layer >= 0; --layer) {
    const int kind = model.kind_of(layer);
    const LayerParts parts = model.parts_of(model.kinds[idx(kind)]);
    const Pass& pass = of_kinds[idx(kind)];
    if (!hides_moves) now_ns += moved_ns(layer, true);
    const bool recomputed = is_recomputed(layer, layout.recompute), has_experts = parts.mlp == Mlp::experts,
               selective = layout.recompute.kind == Recompute::Kind::selective;
    const LayerReading& read = this->read(layout, shared, idx(kind),
                                          recomputed  ? Read::again
                                          : selective ? Read::selective
                                                      : Read::backward);
    const Gathered gathered = gather(parts);
    const bool of_port = largest == &dense[parts] || (has_experts && largest == &experts);
    if (of_port) scattering.port().gathers();
    // The first gradients of weights wait until those of the layer before them in the same place were cast.
    double end_ns = std::max({now_ns + (recomputed ? pass.again_backward_ns : pass.kept_backward_ns),
                              gathered.dense_ns + at(read.from_weights, pass),
                              dense[parts].taken_ns + at(read.from_gradients, pass)});
    if (has_experts)
      end_ns = std::max({end_ns, gathered.experts_ns + at(read.from_experts, pass),
                         experts.taken_ns + at(read.from_expert_gradients, pass)});
    dense[parts].frees(end_ns);
    if (of_port) scattering.port().ends(end_ns);
    scattering.add(dense[parts], end_ns);
    if (has_experts) {
      experts.frees(
          std::max(now_ns + at(read.to_experts, pass), gathered.experts_ns + at(read.within_experts, pass)));
      scattering.add(experts, end_ns);
    }
    now_ns = end_ns;
  }
  now_ns += end_ns(layout, shared.tokens, EndPart::embedding_backward);
  if (!scatters) return now_ns;
  return std::max({now_ns, scattering.ns(), scattering.port().ns()}) + shared.table.scatter_ns;
}

}  // namespace cp::sim
