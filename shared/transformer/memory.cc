#include "shared/transformer/memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "shared/context_parallel/cores.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/sizes.h"

namespace cp {
namespace {

constexpr std::int64_t kF32 = 4;

// How many layers there are with each MLP, and how many of these keep more than their input.
struct Layers {
  ByMlp<std::int64_t> with, keeping;

  std::int64_t count() const { return with[Mlp::dense] + with[Mlp::experts]; }
  void add(const Layers& more) {
    for (const Mlp mlp : kMlps) with[mlp] += more.with[mlp], keeping[mlp] += more.keeping[mlp];
  }
};

// Counts layers of a model. A search asks for millions of these.
class LayersOf {
 public:
  LayersOf(const Transformer& model, const ParallelLayout& layout)
      : model_(model), recompute_(layout.recompute) {
    if (alike_) return;
    alike_ = !model.has(Mlp::dense) || !model.has(Mlp::experts);
    if (!alike_) mlps_ = mlps_of_kinds(model);
  }

  // Whether all layers have the same MLP.
  bool alike() const { return alike_; }

  // Layers first .. first + count - 1, which are a stage of their own.
  Layers operator()(std::int64_t first, std::int64_t count) const {
    Layers layers;
    if (alike_) {
      const Mlp mlp = model_.mlp_of(model_.kinds.front());
      layers.with[mlp] = count, layers.keeping[mlp] = layers_that_keep(count, recompute_);
      return layers;
    }
    const StageLayers stage{std::span(model_.order).subspan(idx(first), idx(count)), mlps_};
    for (const int kind : stage.kinds) ++layers.with[mlps_[idx(kind)]];
    layers.keeping = layers_that_keep(stage, recompute_);
    return layers;
  }

 private:
  const Transformer& model_;
  const Recompute& recompute_;
  bool alike_ = model_.order.empty();
  std::vector<Mlp> mlps_;  // of the kinds, where they differ
};

class MemoryModel {
 public:
  MemoryModel(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
              const MemoryRules& rules)
      : model_(model),
        workload_(workload),
        layout_(layout),
        rules_(rules),
        sizes_(local_sizes(model, workload, layout)),
        width_(size_bytes(workload.dtype)),
        training_(workload.phase == Phase::training) {}

  // Of a pipeline rank with those layers, and as many forward passes of the larger of its stages in flight.
  Memory of(int rank, const Layers& layers, const Layers& most_of_a_stage) const {
    const bool first = rank == 0, last = rank == layout_.pp - 1;
    Memory memory;
    add_parameters(memory, layers, first, last);
    ByMlp<LayerKept> kept;
    for (const Mlp mlp : kMlps) {
      if (layers.with[mlp] > 0) kept[mlp] = kept_of_layer(mlp);
    }
    if (training_) {
      const std::int64_t stages = layout_.pp == 1 ? 1
                                                  : in_flight(rank, layout_.pp, layout_.virtual_stages,
                                                              accumulation(workload_, layout_));
      memory.activations =
          layout_.host_activations
              ? slots_of_activations(layers, kept)
              : stages * activations_of(layout_.virtual_stages == 1 ? layers : most_of_a_stage, kept);
      memory.activations += positions();
    } else {
      memory.kv_cache = cache_of_stage(rank);
    }
    for (const Mlp mlp : kMlps) {
      if (layers.with[mlp] > 0) memory.working = std::max(memory.working, working_of_layer(mlp, kept[mlp]));
    }
    memory.attention = attention_workspace();
    if (last) memory.logits = logits();
    memory.communicators = rules_.communicator_bytes * groups();
    memory.context = rules_.context_bytes;
    memory.slack =
        static_cast<std::int64_t>(std::llround(rules_.slack * static_cast<double>(memory.allocated())));
    return memory;
  }

 private:
  // Activations of one layer in bytes: its input, and what else each choice of recomputation keeps.
  struct LayerKept {
    std::int64_t input = 0;
    std::int64_t cheap = 0;  // norms, activation function: selective computes these again
    std::int64_t rest = 0;   // what comes from products and attention
  };

  void add_parameters(Memory& memory, const Layers& layers, bool first, bool last) const {
    const bool head_here = last && !model_.tied_embeddings,
               embedding_here = first || (last && model_.tied_embeddings);
    const std::int64_t ends = (embedding_here ? sizes_.embedding : 0) + (head_here ? sizes_.head : 0) +
                              (last ? sizes_.final_norm : 0);
    const std::int64_t experts = layers.with[Mlp::experts] * sizes_.expert_layer;
    std::int64_t dense = ends, of_layer = 0, in_slots = 0;
    for (const Mlp mlp : kMlps) dense += layers.with[mlp] * sizes_.layer[mlp];
    if (!training_) {
      memory.parameters =
          std::llround(static_cast<double>(dense + experts - ends) * rules_.served_layer_bytes) +
          ends * width_;
      return;
    }
    const std::int64_t ranks = layout_.sharding_size();
    // Layers with experts and those without have slots of their own: two, or one for a layer that is alone.
    const auto slots = [&](Mlp mlp) { return std::min<std::int64_t>(2, layers.with[mlp]); };
    for (const Mlp mlp : kMlps) {
      of_layer += layers.with[mlp] > 0 ? sizes_.layer[mlp] : 0;
      in_slots += slots(mlp) * sizes_.layer[mlp];
    }
    add_shards(memory, dense, of_layer, in_slots, ranks);
    // Where as many ranks share the experts as share the parameters, each expert is whole.
    if (experts > 0) {
      add_shards(memory, experts, sizes_.expert_layer, slots(Mlp::experts) * sizes_.expert_layer,
                 std::max<std::int64_t>(1, ranks / layout_.ep));
    }
  }

  // Of `numel` parameters that `ranks` ranks share, `of_layer` of them in each layer (or one of each kind),
  // and `in_slots` in the slots to which layers are gathered.
  void add_shards(Memory& memory, std::int64_t numel, std::int64_t of_layer, std::int64_t in_slots,
                  std::int64_t ranks) const {
    const std::int64_t shard = ceil_div(numel, ranks), gradient = size_bytes(workload_.gradient_dtype);
    const Optimizer& optimizer = workload_.optimizer;
    const std::int64_t f32 = optimizer.offload ? 0 : kF32 * shard;
    // A shard in f32 is what gathers read from; where nothing is gathered 16-bit parameters lie beside their
    // master copies.
    const bool whole = ranks == 1, keeps_gradients = whole || layout_.keeps_whole_gradients();
    const bool whole_ones = !whole && layout_.keeps_whole_parameters();  // counted as gathered
    memory.parameters += !optimizer.offload && !whole ? f32 : whole_ones ? 0 : width_ * shard;
    memory.master += whole && workload_.dtype != DType::f32 ? f32 : 0;
    memory.gradients += gradient * shard;
    memory.optimizer += optimizer.offload ? 0 : optimizer.states * size_bytes(optimizer.state_dtype) * shard;
    // Gradients are added up where they stay by products, in f32 or their own dtype; of another one those of
    // a layer are made, rounded and then added.
    const bool rounded =
        workload_.gradient_dtype != workload_.dtype && workload_.gradient_dtype != DType::f32;
    if (keeps_gradients && rounded) memory.unsharded += of_layer * (width_ + gradient);
    if (whole) return;
    // Two layers' parameters; the gradients of one as they come, and those of the layer before it as they are
    // reduced.
    if (layout_.keeps_whole_parameters()) {
      memory.gathered += numel * width_;
    } else {
      memory.unsharded += in_slots * width_;
    }
    if (layout_.keeps_whole_gradients()) {
      memory.gathered += numel * gradient;
    } else if (workload_.gradient_dtype == workload_.dtype) {  // in slots that take turns, too
      memory.unsharded += in_slots * gradient;
    } else {
      memory.unsharded += of_layer * (width_ + gradient);
    }
  }

  // Of the head's weights and their gradients while the loss is at work.
  std::int64_t unsharded_head() const {
    if (layout_.sharding_size() == 1) return 0;
    const std::int64_t table = model_.tied_embeddings ? sizes_.embedding : sizes_.head;
    return table * width_ *
           ((layout_.keeps_whole_parameters() ? 0 : 1) + (layout_.keeps_whole_gradients() ? 0 : 1));
  }

  // What does not depend on the layer's MLP.
  LayerKept kept_by_all() const {
    const std::int64_t tokens = sizes_.tokens, shared = sizes_.tokens_tp * model_.hidden;
    const Strategy& strategy = layout_.strategy;
    const bool ulysses = layout_.cp > 1 && strategy.ulysses_degree > 1;
    const bool exchange = layout_.cp > 1 && strategy.balance.kind == Balance::Kind::head_tail_exchange;
    LayerKept kept;
    kept.input = shared * width_;
    kept.cheap = 2 * shared * width_;
    // q and out, k and v, with copies where attention computes on other parts than those at home.
    const std::int64_t q_copies = ulysses || exchange ? 3 : 2;
    const std::int64_t q_and_out = sizes_.q_width + (q_copies - 1) * sizes_.out_width;
    kept.rest = (shared + tokens * (q_and_out + kept_kv_width())) * width_;
    kept.rest += tokens * sizes_.q_heads * kF32;  // lse
    if (model_.latent) {
      const std::int64_t rows = sizes_.tokens_tp * (model_.latent->q_rank + model_.latent->kv_row()) * width_;
      kept.cheap += rows, kept.rest += rows;  // with their norms, and without
    }
    if (model_.norms_behind) kept.rest += 2 * shared * width_;  // before the norms behind
    if (model_.qk_norm)
      kept.rest += tokens * (sizes_.q_width + sizes_.kv_width) * width_;  // before the norms
    return kept;
  }

  LayerKept kept_of_layer(Mlp mlp) const {
    const std::int64_t tokens = sizes_.tokens;
    LayerKept kept = kept_by_all();
    if (mlp == Mlp::experts) {
      kept.cheap += sizes_.expert_tokens * sizes_.expert_columns * width_;
      kept.rest += sizes_.expert_tokens * ((2 * sizes_.expert_columns + model_.hidden) * width_ + kF32);
      // What the router said, and which experts were chosen.
      kept.rest += tokens * (model_.experts->count * width_ + model_.experts->top_k * kF32);
    }
    if (layout_.mlp_chunks == 1) {
      kept.cheap += tokens * sizes_.columns[mlp] * width_;
      kept.rest += tokens * 2 * sizes_.columns[mlp] * width_;
    }
    return kept;
  }

  // Of a layer that keeps more than its input.
  std::int64_t beside_input(const LayerKept& kept) const {
    return layout_.recompute.kind == Recompute::Kind::selective ? kept.rest : kept.cheap + kept.rest;
  }

  // Of keys and values together. With Ulysses a rank keeps its group's rows of the kv heads that its query
  // heads use, at least one.
  std::int64_t kept_kv_width() const {
    const std::int64_t ulysses = layout_.cp > 1 ? layout_.strategy.ulysses_degree : 1;
    const std::int64_t q_heads = ceil_div(sizes_.q_heads, ulysses),
                       heads_per_kv = sizes_.q_heads / sizes_.kv_heads;
    return ulysses * ceil_div(q_heads, heads_per_kv) * (model_.head_dim + model_.v_head_dim());
  }

  // Inside of the attention region in one pass: q and its gradient or what it is made of, and k and v with
  // theirs; beside latent rows, those gathered, and their gradients.
  std::int64_t attention_inside() const {
    const std::int64_t tokens = sizes_.tokens;
    if (!model_.latent) return tokens * 2 * (sizes_.q_width + sizes_.kv_width);
    const std::int64_t rows = model_.latent->q_rank + model_.latent->kv_row();
    return tokens * (2 * sizes_.q_width + sizes_.kv_width + sizes_.v_width + sizes_.up_width + 2 * rows) +
           2 * sizes_.tokens_tp * rows;
  }

  std::int64_t activations_of(const Layers& layers, const ByMlp<LayerKept>& kept) const {
    std::int64_t bytes = 0;
    for (const Mlp mlp : kMlps) {
      bytes += layers.with[mlp] * kept[mlp].input + layers.keeping[mlp] * beside_input(kept[mlp]);
    }
    return bytes;
  }

  // In host memory: of two layers, which take turns. Of what layers with one MLP alone have, there are two as
  // well.
  std::int64_t slots_of_activations(const Layers& layers, const ByMlp<LayerKept>& kept) const {
    // Two slots take turns; activations.h says why two are enough.
    constexpr std::int64_t kHeld = 2;
    const LayerKept common = kept_by_all();
    std::int64_t bytes = common.input;
    if (layers.keeping[Mlp::dense] + layers.keeping[Mlp::experts] > 0) bytes += beside_input(common);
    for (const Mlp mlp : kMlps) {
      if (layers.keeping[mlp] > 0) bytes += beside_input(kept[mlp]) - beside_input(common);
    }
    return kHeld * bytes;
  }

  // The layer at work: what it computes again, and the gradients on their way; forward, what it makes.
  std::int64_t working_of_layer(Mlp of, const LayerKept& kept) const {
    const std::int64_t tokens = sizes_.tokens, hidden = model_.hidden;
    const bool experts = of == Mlp::experts;
    // Rows times the width inside, of experts and of the MLP that computes all rows.
    const auto inside = [&](std::int64_t rows) {
      return (experts ? sizes_.expert_tokens * sizes_.expert_columns : 0) + rows * sizes_.columns[of];
    };
    // Whole rows on both sides of a region, and their gradients.
    const std::int64_t gathered = layout_.row_ranks() > 1 ? (training_ ? 3 : 1) * tokens * hidden : 0;
    if (!training_) {
      const std::int64_t mlp = 3 * inside(tokens), attention = attention_inside();
      return (std::max(mlp, attention) + 2 * sizes_.tokens_tp * hidden + gathered) * width_;
    }
    // Chunks make gate, up and their product again, beside the gradients of these.
    const std::int64_t at_once = layout_.mlp_chunks > 1 ? 2 * sizes_.mlp_tokens : tokens;
    const std::int64_t mlp = 3 * inside(at_once) + (experts ? 2 * sizes_.expert_tokens * hidden : 0),
                       attention = attention_inside();
    const std::int64_t backward =
        (std::max(mlp, attention) + tokens * hidden + gathered + 2 * sizes_.tokens_tp * hidden) * width_;
    switch (layout_.recompute.kind) {
      case Recompute::Kind::none:
        return backward;
      case Recompute::Kind::selective:
        return backward + kept.cheap;
      case Recompute::Kind::full:
      case Recompute::Kind::every:
        return backward + kept.cheap + kept.rest;
    }
    return backward;
  }

  // Sines and cosines of a whole sequence, which every rank has: with cp they grow beside rows that do not.
  std::int64_t positions() const { return workload_.seq_len * model_.rotated_dim() * kF32; }

  std::int64_t cache_of_stage(int stage) const {
    const auto [first, count] = layers_of_stage(model_, layout_, stage);
    const std::vector<std::int64_t> layers = layers_of_kinds(model_, first, count);
    std::int64_t rows = 0;
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      const AttentionProblem problem = attention_problem(model_, workload_, layout_, model_.kinds[kind]);
      rows += layers[kind] * ceil_div(problem.kv_len, layout_.cp);
    }
    return layout_.micro_batch * rows * 2 * sizes_.kv_width *
           (rules_.cached_bytes > 0 ? rules_.cached_bytes : size_bytes(workload_.kv_dtype));
  }

  // What attention plans allocate beyond what is kept; a property holds it against their arenas.
  std::int64_t attention_workspace() const {
    const std::int64_t q = sizes_.tokens * std::max(sizes_.q_width, sizes_.out_width),
                       kv_rows = workload_.phase == Phase::training
                                     ? sizes_.tokens
                                     : layout_.micro_batch * ceil_div(workload_.seq_len, layout_.cp);
    const std::int64_t kv = kv_rows * kept_kv_width();  // K and V of a rank
    const std::int64_t delta = training_ ? sizes_.tokens * sizes_.q_heads * kF32 : 0;
    if (layout_.cp == 1) return delta;
    const Strategy& strategy = layout_.strategy;
    const int ulysses = strategy.ulysses_degree, ring = layout_.cp / ulysses;
    // Of what comes in pieces, one is computed on while the next one travels.
    const std::int64_t pieces = strategy.pieces, at_once = std::min<std::int64_t>(2, pieces);
    const auto in_flight = [&](std::int64_t of_all) { return of_all * at_once / pieces; };
    // Packing on both sides of an all-to-all, and the gradients of what was kept.
    const std::int64_t bytes =
        delta + in_flight(ulysses > 1 ? (2 * (q + kv) + (training_ ? q + kv : 0)) * width_ : 0);
    if (ring == 1) return bytes;
    return bytes + facts(strategy.core)
                       .workspace_bytes(strategy, {ring, in_flight(q), in_flight(kv), width_, training_});
  }

  // In the workload's dtype; and their gradient, or before it comes what the loss makes of them in f32.
  std::int64_t logits() const {
    if (!training_) return layout_.micro_batch * sizes_.vocab * kF32;
    const auto f32 = static_cast<std::int64_t>(std::llround(rules_.loss_f32_copies * kF32));
    return unsharded_head() + sizes_.chunk_tokens * sizes_.vocab * (width_ + std::max(width_, f32)) +
           sizes_.tokens * model_.hidden * width_;
  }

  std::int64_t groups() const {
    return (layout_.tp > 1) + (layout_.cp > 1) + (training_ && layout_.sharding_size() > 1) +
           (layout_.dp_replicate > 1 && training_) + (layout_.ep > 1) + (layout_.pp > 1 ? 2 : 0);
  }

  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  const MemoryRules& rules_;
  const LocalSizes sizes_;
  const std::int64_t width_;
  const bool training_;
};

}  // namespace

std::array<std::pair<std::string_view, std::int64_t>, 14> terms(const Memory& memory) {
  return {{{"parameters", memory.parameters},
           {"master copies", memory.master},
           {"gradients", memory.gradients},
           {"optimizer", memory.optimizer},
           {"gathered", memory.gathered},
           {"unsharded", memory.unsharded},
           {"activations", memory.activations},
           {"working", memory.working},
           {"logits", memory.logits},
           {"attention", memory.attention},
           {"kv cache", memory.kv_cache},
           {"communicators", memory.communicators},
           {"context", memory.context},
           {"slack", memory.slack}}};
}

Memory memory_of(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                 const MemoryRules& rules) {
  const MemoryModel of(model, workload, layout, rules);
  const LayersOf layers_of(model, layout);
  if (layout.pp == 1) {
    const Layers all = layers_of(0, model.layers);
    return of.of(0, all, all);
  }
  const std::vector<std::int64_t> stages = stage_layers(model, layout);
  const std::int64_t largest = *std::max_element(stages.begin(), stages.end());
  Memory result;
  // The first rank, whose activations wait longest; the second, which may have more layers; the last, which
  // has the head. Where layers have different MLPs, any of them.
  for (int rank = 0; rank < layout.pp; ++rank) {
    if (layers_of.alike() && rank > 1 && rank < layout.pp - 1) continue;
    Layers layers, most;
    for (int chunk = 0; chunk < layout.virtual_stages; ++chunk) {
      const auto stage = stages.begin() + std::ptrdiff_t{chunk} * layout.pp + rank;
      const Layers of_stage = layers_of(std::accumulate(stages.begin(), stage, std::int64_t{0}), *stage);
      layers.add(of_stage);
      if (of_stage.count() > most.count()) most = of_stage;
    }
    if (layers_of.alike()) most = layers_of(0, largest);
    const Memory memory = of.of(rank, layers, most);
    if (memory.used() > result.used()) result = memory;
  }
  return result;
}

}  // namespace cp
