// What the layers of a step take at least: what is read of their plans, with what attention and recurrences
// take at least.
#include <algorithm>
#include <cmath>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/cores.h"
#include "shared/transformer/layer_plan.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/bound_terms.h"

namespace cp::sim {

using namespace bound_terms;

namespace {

// Of the layers of a kind, at least: on the stage where fewest are.
double recomputed_share(const ParallelLayout& layout, const Transformer& model, int kind) {
  if (layout.recompute.kind == Recompute::Kind::full) return 1;
  if (!model.order.empty()) {
    double least = 1;
    std::int64_t first = 0;
    for (const std::int64_t count : stage_layers(model, layout)) {
      std::int64_t of_kind = 0, again = 0;
      for (std::int64_t layer = 0; layer < count; ++layer) {
        if (model.order[idx(first + layer)] != kind) continue;
        ++of_kind;
        if (layer % layout.recompute.every == layout.recompute.every - 1) ++again;
      }
      if (of_kind > 0) least = std::min(least, real(again) / real(of_kind));
      first += count;
    }
    return least;
  }
  const auto share = [&](std::int64_t number) {
    return real(number / layout.recompute.every) / real(number);
  };
  if (model.prediction_layers > 0) {  // the last stage may have far fewer than the others
    double least = 1;
    for (const std::int64_t count : stage_layers(model, layout)) least = std::min(least, share(count));
    return least;
  }
  const std::int64_t fewest = model.layers / (std::int64_t{layout.pp} * layout.virtual_stages);
  return std::min(share(fewest), share(fewest + 1));
}

}  // namespace

// Found once for each group: it takes longer than all else of a bound.
Spread StepBound::spread_of(const Ranks& group) const {
  return spreads_.of({group.stride, group.size}, [&] {
    std::vector<Rank> ranks;
    for (std::int64_t i = 0; i < group.size; ++i) ranks.push_back(static_cast<Rank>(i * group.stride));
    return cp::sim::spread_of(ranks, question_.cluster);
  });
}

std::int64_t StepBound::on_a_node(const Ranks& ranks) const {
  const Node& node = question_.cluster.node;
  const std::int64_t near = std::max(node.gpus, node.nvlink_domain);
  return std::clamp<std::int64_t>(near / ranks.stride, 1, ranks.size);
}

double StepBound::from_each_ns(double bytes, const Ranks& ranks, Brings what) const {
  const Cluster& cluster = question_.cluster;
  const std::int64_t near = on_a_node(ranks), nics = what == Brings::all_the_same ? near : 1;
  if (ranks.size == 1) return 0;
  const double inside = real(near - 1) * bytes / std::max(cluster.node.nvlink_gbps, cluster.node.pcie_gbps),
               outside = real(ranks.size - near) * bytes / (real(nics) * cluster.network.nic_gbps);
  return std::max({inside, outside, hop_ns(bytes, ranks)});
}

double StepBound::hop_ns(double bytes, const Ranks& ranks) const {
  if (bytes == 0) return 0;
  const Cluster& cluster = question_.cluster;
  const bool leaves = on_a_node(ranks) < ranks.size;
  const Curve& measured = leaves ? cluster.transfer.inter_node : cluster.transfer.intra_node;
  const double link =
      leaves ? cluster.network.nic_gbps : std::max(cluster.node.nvlink_gbps, cluster.node.pcie_gbps);
  return bytes / (measured.empty() ? link : std::min(link, measured.at(bytes)));
}

// Its rows once, on every rank the same share of them and of the heads, whatever passes the states. Nothing
// is claimed of these, nor of the kernels around a scan. Where a token is written, and on one rank, a cached
// state is read and written; with heads each rank has a part of it.
StepBound::Pass StepBound::recurrence(const ParallelLayout& layout, const LocalSizes& sizes) const {
  const Recurrence& r = sizes.recurrence;
  const RecurrenceProblem problem = recurrence_problem(question_.model, question_.workload, layout);
  const double rows = std::min(real(sizes.tokens), real(problem.seq_len * layout.micro_batch) / layout.cp);
  KernelWork work;
  if (problem.cached_state && (layout.cp == 1 || question_.workload.phase == Phase::decode))
    work.bytes = kSlack * 2 * real(problem.state_numel() * size_bytes(DType::f32)) / layout.cp;
  work.flops = kSlack * rows * real(r.value_heads) * recurrence_row_flops(r.rule, r.key_dim, r.value_dim);
  const double forward = kernels_.recurrence_ns(work, question_.workload.dtype);
  work.flops *= kBackwardOfRecurrence;
  return {forward, kernels_.recurrence_ns(work, question_.workload.dtype)};
}

const LayerReading& StepBound::read(const ParallelLayout& layout, const Shared& shared, std::size_t kind,
                                    Read what, LatentUse use) const {
  std::vector<Readings>& known = shared.readings[use == LatentUse::rows ? 1 : 0];
  if (known.empty()) known.resize(alone_.size());
  const LayerReading*& reading = known[kind][static_cast<std::size_t>(what)];
  if (reading != nullptr) return *reading;
  const Transformer& model = alone_[kind];
  const LayerParts parts = model.parts_of(model.kinds.front());
  // What the layer has no use for is left out: most layouts of a search differ in that alone.
  const bool has_chunks = shared.sizes.columns(parts.mlp) > 0,
             travels = parts.mlp == Mlp::experts && layout.ep > 1;
  const Spread of_ep = travels ? spread_of_ep(layout) : Spread{};
  const int stride = layout.tp > 1 ? static_cast<int>(strides_of(layout).tp) : 1;
  const ReadingKey key{first_alike_[kind],
                       what,
                       use,
                       {layout.tp, layout.row_ranks(), has_chunks ? layout.mlp_chunks : 1,
                        travels ? layout.ep : 1, of_ep.fewest_on_a_node, of_ep.nodes},
                       {stride, shared.tokens}};
  reading = &readings_.of(key, [&] { return made_reading(layout, kind, shared.tokens, what, use); });
  return *reading;
}

// Its rows are those of as many sequences of one token, which no other rank has a part of: beside its mixer a
// layer does the same with each row, whatever sequence that is of. (Rotary kernels read the sines and cosines
// of one position then. Those of more are left out.) A prompt is one sequence, since each has rows in the
// cache that its short convolutions saw last; of a prompt that cp ranks share one of them reads and replaces
// these, three rows or so, which is less than what kSlack leaves out.
LayerReading StepBound::made_reading(const ParallelLayout& layout, std::size_t kind, std::int64_t tokens,
                                     Read what, LatentUse use) const {
  StepRequest request{alone_[kind], question_.workload, {}};
  ParallelLayout& alone = request.layout;
  alone.tp = layout.tp, alone.sequence_parallel = layout.sequence_parallel;
  alone.ep = alone.dp_shard = request.model.experts ? layout.ep : 1;
  alone.mlp_chunks = layout.mlp_chunks;
  if (what == Read::selective) alone.recompute.kind = Recompute::Kind::selective;
  if (what == Read::again) alone.recompute.kind = Recompute::Kind::full;
  alone.micro_batch = tokens;
  one_token_each(request);
  if (question_.workload.phase == Phase::prefill) {
    request.workload.seq_len = tokens, request.workload.global_batch = alone.dp_shard;
    alone.micro_batch = 1;
  }
  MixerPlanCache mixers(2);
  const LayerPlan plan =
      layer_plan(request, use, what == Read::forward ? LayerPass::forward : LayerPass::backward, mixers);
  return read_layer(plan, kernels_, [&](const Collective& transfer, const Plan& of) {
    return transfer_ns(layout, transfer, of);
  });
}

std::vector<StepBound::Pass> StepBound::layers(const ParallelLayout& layout, const Shared& shared,
                                               bool whole_family, const AttentionTimes* replayed) const {
  std::vector<Pass> passes;
  for (std::size_t kind = 0; kind < pairs_.size(); ++kind) {
    auto [kernels, moved] = attention(layout, shared.sizes, kind, whole_family);
    const Mixer mixer = question_.model.kinds[kind].mixer;
    kernels.forward_ns += launch_ns_ * read(layout, shared, kind, Read::forward).forward_launches;
    if (question_.workload.phase == Phase::training)
      kernels.backward_ns += launch_ns_ * read(layout, shared, kind, Read::backward).backward_launches;
    MixerBound of_mixer{kernels.forward_ns + moved.forward_ns, moved.forward_ns, kernels.backward_ns,
                        kernels.backward_ns + moved.backward_ns};
    if (replayed != nullptr && mixer != Mixer::none) {
      // No sums of what was replayed and of what was not: kernels that pack and unpack rows, which the latter
      // knows nothing of, may run beside transfers.
      const auto& [forward, backward] = replayed->of_kinds[kind];
      if (!is_least_alone(question_, layout, question_.model.kinds[kind])) {
        // Its kernels at least, as fast as they are without transfers beside them.
        const SoftwareProfile& software = question_.software;
        of_mixer.forward_ns =
            std::max(of_mixer.forward_ns, kSlack * software.forward_progress * forward.kernels_ns);
        of_mixer.backward_ns =
            std::max(of_mixer.backward_ns,
                     kSlack * (software.backward_progress * backward.kernels_ns + backward.behind_ns));
      } else {
        // Backward, keys and values may come long before.
        of_mixer.moved_ns = mixer == Mixer::attention ? kSlack * forward.exposed_ns : 0;
        of_mixer.forward_ns = kSlack * forward.kernels_ns + of_mixer.moved_ns;
        of_mixer.backward_ns = kSlack * (backward.kernels_ns + backward.behind_ns);
      }
    }
    of_mixer.chain_ns = std::max(of_mixer.chain_ns, of_mixer.backward_ns);
    passes.push_back(layer(layout, shared, static_cast<int>(kind), of_mixer, whole_family));
  }
  return passes;
}

StepBound::Pass StepBound::layer(const ParallelLayout& layout, const Shared& shared, int kind,
                                 const MixerBound& of_mixer, bool whole_family) const {
  const LatentUse use = latent_use(question_.model, question_.workload, layout);
  Pass pass = layer(layout, shared, kind, of_mixer, whole_family, use);
  // Of a family, some members may take the rows themselves.
  if (!whole_family || !question_.model.latent || layout.cp == 1 ||
      question_.workload.phase != Phase::training)
    return pass;
  for (const LatentUse other : {LatentUse::nothing, LatentUse::rows}) {
    const Pass of_other = layer(layout, shared, kind, of_mixer, whole_family, other);
    pass.forward_ns = std::min(pass.forward_ns, of_other.forward_ns);
    pass.backward_ns = std::min(pass.backward_ns, of_other.backward_ns);
  }
  return pass;
}

StepBound::Pass StepBound::layer(const ParallelLayout& layout, const Shared& shared, int kind,
                                 const MixerBound& of_mixer, bool whole_family, LatentUse use) const {
  const auto read = [&](Read what) -> const LayerReading& {
    return this->read(layout, shared, idx(kind), what, use);
  };
  const LayerReading& forward = read(Read::forward);
  Pass pass;
  pass.mixer_forward_ns = of_mixer.forward_ns, pass.mixer_backward_ns = of_mixer.backward_ns;
  pass.forward_ns = kSlack * std::max(forward.whole.at(pass.mixer_forward_ns, 0), forward.around_ns);
  if (question_.workload.phase != Phase::training) return pass;
  const auto backward_ns = [&](const LayerReading& backward) {
    return kSlack *
           std::max({backward.whole.at(pass.mixer_forward_ns, pass.mixer_backward_ns),
                     backward.chain.at(pass.mixer_forward_ns, of_mixer.chain_ns), backward.around_ns});
  };
  // A family has members that keep all they can. Others have the same steps, and more.
  const Recompute::Kind recompute = layout.recompute.kind;
  const bool selective = !whole_family && recompute == Recompute::Kind::selective;
  pass.kept_backward_ns = backward_ns(read(selective ? Read::selective : Read::backward));
  pass.backward_ns = pass.kept_backward_ns;
  if (whole_family || (recompute != Recompute::Kind::full && recompute != Recompute::Kind::every))
    return pass;
  pass.again_backward_ns = backward_ns(read(Read::again));
  const double share = recomputed_share(layout, question_.model, kind);
  pass.backward_ns += share * (pass.again_backward_ns - pass.kept_backward_ns);
  pass.again_moved_ns = std::min(share * pass.forward_ns, of_mixer.moved_ns + forward.moved_ns);
  return pass;
}

}  // namespace cp::sim
