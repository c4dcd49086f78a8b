#include "shared/transformer/memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "shared/plan/recurrence_rules.h"
#include "shared/transformer/attention_memory.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/sizes.h"

namespace cp {
namespace {

constexpr std::int64_t kF32 = 4;

// How many layers there are with which parts, and how many of these keep more than their input.
struct Layers {
  ByParts<std::int64_t> with, keeping;

  std::int64_t count() const { return count_of(with); }
  bool operator==(const Layers&) const = default;
  void add(const Layers& more) {
    for (const LayerParts parts : kLayerParts)
      with[parts] += more.with[parts], keeping[parts] += more.keeping[parts];
  }
};

// Counts layers of a model. A search asks for millions of these.
class LayersOf {
 public:
  LayersOf(const Transformer& model, const ParallelLayout& layout)
      : model_(model), recompute_(layout.recompute) {
    if (alike_) return;
    const LayerParts first = model.parts_of(model.kinds.front());
    parts_ = parts_of_kinds(model);
    alike_ = std::all_of(parts_.begin(), parts_.end(), [&](LayerParts parts) { return parts == first; });
  }

  // Whether all layers have the same parts.
  bool alike() const { return alike_; }

  // Layers first .. first + count - 1, which are a stage of their own.
  Layers operator()(std::int64_t first, std::int64_t count) const {
    Layers layers;
    if (alike_) {
      const LayerParts parts = model_.parts_of(model_.kinds.front());
      layers.with[parts] = count, layers.keeping[parts] = layers_that_keep(count, recompute_);
      return layers;
    }
    const StageLayers stage{std::span(model_.order).subspan(idx(first), idx(count)), parts_};
    for (const int kind : stage.kinds) ++layers.with[parts_[idx(kind)]];
    layers.keeping = layers_that_keep(stage, recompute_);
    return layers;
  }

 private:
  const Transformer& model_;
  const Recompute& recompute_;
  bool alike_ = model_.order.empty();
  std::vector<LayerParts> parts_;  // of the kinds
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
        attention_(model, workload, layout, sizes_),
        width_(size_bytes(workload.dtype)),
        training_(workload.phase == Phase::training) {}

  // What these layers keep of one micro-batch for the backward pass.
  std::int64_t kept_by(const Layers& layers) const {
    ByParts<LayerKept> kept;
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] > 0) kept[parts] = kept_of_layer(parts);
    }
    return activations_of(layers, kept);
  }

  // Of a pipeline rank with those layers, and as many forward passes of the larger of its stages in flight.
  Memory of(int rank, const Layers& layers, const Layers& most_of_a_stage) const {
    const bool first = rank == 0, last = rank == layout_.pp - 1;
    Memory memory;
    add_parameters(memory, layers, first, last);
    ByParts<LayerKept> kept;
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] > 0) kept[parts] = kept_of_layer(parts);
    }
    if (training_) {
      const std::int64_t stages = layout_.pp == 1 ? 1
                                                  : in_flight(rank, layout_.pp, layout_.virtual_stages,
                                                              accumulation(workload_, layout_));
      memory.activations =
          layout_.host_activations
              ? slots_of_activations(layers)
              : stages * activations_of(layout_.virtual_stages == 1 ? layers : most_of_a_stage, kept);
      memory.activations += positions();
    } else {
      memory.kv_cache = attention_.cached_elements(rank) *
                        (rules_.cached_bytes > 0 ? rules_.cached_bytes : size_bytes(workload_.kv_dtype));
    }
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] > 0)
        memory.working = std::max(memory.working, working_of_layer(parts, kept[parts]));
    }
    memory.attention = attention_.workspace_bytes();
    if (count_of(layers.with, Mixer::recurrence) > 0)
      memory.attention = std::max(memory.attention, recurrence_workspace());
    if (last) memory.logits = logits();
    memory.communicators = rules_.communicator_bytes * groups();
    memory.context = rules_.context_bytes;
    memory.slack =
        static_cast<std::int64_t>(std::llround(rules_.slack * static_cast<double>(memory.allocated())));
    return memory;
  }

 private:
  void add_parameters(Memory& memory, const Layers& layers, bool first, bool last) const {
    const bool head_here = last && !model_.tied_embeddings,
               embedding_here = first || (last && model_.tied_embeddings);
    const std::int64_t ends = (embedding_here ? sizes_.embedding : 0) + (head_here ? sizes_.head : 0) +
                              (last ? sizes_.final_norm : 0);
    const std::int64_t with_experts = count_of(layers.with, Mlp::experts),
                       experts = with_experts * sizes_.expert_layer;
    std::int64_t dense = ends, of_layer = 0, in_slots = 0;
    for (const LayerParts parts : kLayerParts) dense += layers.with[parts] * sizes_.layer[parts];
    if (!training_) {
      memory.parameters =
          std::llround(static_cast<double>(dense + experts - ends) * rules_.served_layer_bytes) +
          ends * width_;
      return;
    }
    const std::int64_t ranks = layout_.sharding_size();
    // Layers of other parts have slots of their own: two, or one for a layer that is alone.
    const auto slots = [](std::int64_t count) { return std::min<std::int64_t>(2, count); };
    // Whole pieces are as many elements as shards of equal sizes make.
    for (const LayerParts parts : kLayerParts) {
      const std::int64_t padded = ranks * ceil_div(sizes_.layer[parts], ranks);
      of_layer += layers.with[parts] > 0 ? padded : 0;
      in_slots += slots(layers.with[parts]) * padded;
    }
    // Each layer is sharded by itself where it is gathered by itself, else all of the same parts together;
    // the embedding, and the head with its norm, by themselves.
    const auto shard_of = [&](std::int64_t layers_of_unit, std::int64_t numel, std::int64_t sharing) {
      return layout_.keeps_whole_parameters() ? ceil_div(layers_of_unit * numel, sharing)
                                              : layers_of_unit * ceil_div(numel, sharing);
    };
    std::int64_t shard = ceil_div(embedding_here ? sizes_.embedding : 0, ranks) +
                         ceil_div((head_here ? sizes_.head : 0) + (last ? sizes_.final_norm : 0), ranks);
    for (const LayerParts parts : kLayerParts)
      shard += shard_of(layers.with[parts], sizes_.layer[parts], ranks);
    add_shards(memory, {dense, shard, of_layer, in_slots}, ranks);
    // Where as many ranks share the experts as share the parameters, each expert is whole.
    if (experts > 0) {
      const std::int64_t sharing = std::max<std::int64_t>(1, ranks / layout_.ep),
                         padded = sharing * ceil_div(sizes_.expert_layer, sharing);
      add_shards(memory,
                 {experts, shard_of(with_experts, sizes_.expert_layer, sharing), padded,
                  slots(with_experts) * padded},
                 sharing);
    }
  }

  // Parameters that some ranks share: all of them, the shard of one rank, those of one layer (or of one of
  // each kind), and those in the slots to which layers are gathered.
  struct Shared {
    std::int64_t numel, shard, of_layer, in_slots;
  };
  void add_shards(Memory& memory, const Shared& shared, std::int64_t ranks) const {
    const auto& [numel, shard, of_layer, in_slots] = shared;
    const std::int64_t gradient = size_bytes(workload_.gradient_dtype);
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

  // ---- what a layer keeps, part by part ----

  LayerKept kept_of_recurrence() const {
    const Recurrence& r = sizes_.recurrence;
    const std::int64_t tokens = sizes_.tokens;
    LayerKept kept;
    // What the projection gave; q, k and v behind the convolution, or all rows of some heads of these, which
    // are as many; decay and beta; the output, before its norm and behind it.
    kept.rest =
        tokens * ((r.projected() + r.convolved() + r.value_width()) * width_ + 2 * r.value_heads * kF32);
    kept.cheap = tokens * r.value_width() * width_;
    if (layout_.cp == 1) return kept;
    const OfScan most = most_of_scan();
    // The halo.
    kept.rest += most.states * layout_.micro_batch * (r.convolution - 1) * r.convolved() * width_;
    if (layout_.scan == StateScan::heads) {  // v at home, too, where it is added to the output
      if (r.rule == RecurrenceRule::decay) kept.rest += tokens * r.value_width() * width_;
      return kept;
    }
    const RecurrenceProblem problem = recurrence_problem(model_, workload_, layout_);
    kept.rest += (most.states * problem.state_numel() + most.transitions * problem.transition_numel()) * kF32;
    return kept;
  }

  // What the rank that has most keeps of a scan: the states that came in to its chunks, and the transitions
  // of chunks that hand on what came in. The first chunk of all gets nothing, and the last one hands nothing
  // on.
  struct OfScan {
    std::int64_t states = 1, transitions = 1;
  };
  OfScan most_of_scan() const {
    const RecurrenceStrategy strategy = recurrence_strategy(layout_);
    const int inner = strategy.ulysses_degree, ring = layout_.cp / inner;
    if (strategy.balance.kind != Balance::Kind::head_tail || ring == 1) return {1, layout_.cp > 2 ? 1 : 0};
    // A rank has two chunks, but for the last one, whose chunks are neighbours. Cut again into an even number
    // of pieces, no piece has rows of both; of an odd number the middle one has.
    if (inner % 2 == 0 || (inner == 1 && ring == 2)) return {1, 1};
    return {2, 2};
  }

  LayerKept kept_of_mlp(Mlp mlp) const {
    const std::int64_t tokens = sizes_.tokens, ups = model_.up_matrices();
    LayerKept kept;
    if (mlp == Mlp::experts) {
      kept.cheap += sizes_.expert_tokens * sizes_.expert_columns * width_;
      kept.rest += sizes_.expert_tokens * ((ups * sizes_.expert_columns + model_.hidden) * width_ + kF32);
      // What the router said, and which experts were chosen.
      kept.rest += tokens * (model_.experts->count * width_ + model_.experts->top_k * kF32);
    }
    if (layout_.mlp_chunks == 1) {
      kept.cheap += tokens * sizes_.columns(mlp) * width_;
      kept.rest += tokens * ups * sizes_.columns(mlp) * width_;
    }
    return kept;
  }

  // What the layers that have `what` keep of it.
  LayerKept kept_with(Having what) const {
    const std::int64_t rows = sizes_.tokens_tp * model_.hidden * width_,
                       before = model_.norms_before ? rows : 0,
                       behind = model_.norms_behind ? rows : 0;  // what is normalized behind
    switch (what) {
      case Having::anything:
        return {.input = rows};
      case Having::mixer:
      case Having::mlp:
        return {.cheap = before, .rest = behind};
      case Having::both:
        return {.rest = rows};  // between the two
      case Having::attention:
        return attention_.kept();
      case Having::recurrence:
        return kept_of_recurrence();
      case Having::dense:
        return kept_of_mlp(Mlp::dense);
      case Having::experts:
        return kept_of_mlp(Mlp::experts);
    }
    return {};
  }

  LayerKept kept_of_layer(LayerParts parts) const {
    LayerKept kept;
    for (const Having what : kHaving) {
      if (have(parts, what)) kept.add(kept_with(what));
    }
    return kept;
  }

  // Of a layer that keeps more than its input.
  std::int64_t beside_input(const LayerKept& kept) const {
    return layout_.recompute.kind == Recompute::Kind::selective ? kept.rest : kept.cheap + kept.rest;
  }

  // Inside of the mixer's region in one pass.
  std::int64_t mixer_inside(Mixer mixer) const {
    return mixer == Mixer::attention    ? attention_.elements_inside()
           : mixer == Mixer::recurrence ? recurrence_inside()
                                        : 0;
  }
  // What the projection gives, q, k and v, and the output before and behind its norm, or their gradients.
  std::int64_t recurrence_inside() const {
    const Recurrence& r = sizes_.recurrence;
    return sizes_.tokens * (r.projected() + r.convolved() + 2 * r.value_width()) +
           sizes_.tokens * 2 * r.value_heads * kF32 / width_;
  }

  std::int64_t activations_of(const Layers& layers, const ByParts<LayerKept>& kept) const {
    std::int64_t bytes = 0;
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] == 0) continue;
      bytes += layers.with[parts] * kept[parts].input + layers.keeping[parts] * beside_input(kept[parts]);
    }
    return bytes;
  }

  // In host memory: of two layers, which take turns. Of what some layers alone have, there are two as well.
  std::int64_t slots_of_activations(const Layers& layers) const {
    // Two slots take turns; activations.h says why two are enough.
    constexpr std::int64_t kHeld = 2;
    std::int64_t bytes = kept_with(Having::anything).input;
    for (const Having what : kHaving) {
      if (count_of(layers.keeping, what) > 0) bytes += beside_input(kept_with(what));
    }
    return kHeld * bytes;
  }

  // The layer at work: what it computes again, and the gradients on their way; forward, what it makes.
  std::int64_t working_of_layer(LayerParts of, const LayerKept& kept) const {
    const std::int64_t tokens = sizes_.tokens, hidden = model_.hidden, widths = model_.up_matrices() + 1;
    const bool experts = of.mlp == Mlp::experts;
    // Rows times the width inside, of experts and of the MLP that computes all rows.
    const auto inside = [&](std::int64_t rows) {
      return (experts ? sizes_.expert_tokens * sizes_.expert_columns : 0) + rows * sizes_.columns(of.mlp);
    };
    // Whole rows on both sides of a region, and their gradients.
    const std::int64_t gathered = layout_.row_ranks() > 1 ? (training_ ? 3 : 1) * tokens * hidden : 0;
    if (!training_) {
      const std::int64_t mlp = widths * inside(tokens), attention = mixer_inside(of.mixer);
      return (std::max(mlp, attention) + 2 * sizes_.tokens_tp * hidden + gathered) * width_;
    }
    // Chunks make gate, up and their product again, beside the gradients of these.
    const std::int64_t at_once = layout_.mlp_chunks > 1 ? 2 * sizes_.mlp_tokens : tokens;
    const std::int64_t mlp = widths * inside(at_once) + (experts ? 2 * sizes_.expert_tokens * hidden : 0),
                       attention = mixer_inside(of.mixer);
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

  // What recurrence plans allocate beyond what is kept: for each chunk its own state, and what the scan
  // brings and joins; backward the states of rows, of the heads that are computed at once.
  std::int64_t recurrence_workspace() const {
    const RecurrenceProblem problem = recurrence_problem(model_, workload_, layout_);
    const RecurrenceStrategy strategy = recurrence_strategy(layout_);
    const bool two = strategy.balance.kind == Balance::Kind::head_tail && strategy.ulysses_degree % 2 == 1 &&
                     layout_.cp > strategy.ulysses_degree;
    const std::int64_t chunks = two ? 2 : 1, cp = layout_.cp;  // of a rank
    const bool trades = layout_.scan == StateScan::heads && cp > 1;
    const std::int64_t key_heads = problem.key_heads / (trades ? cp : 1),
                       rows = trades ? workload_.seq_len : ceil_div(sizes_.rows, chunks),
                       lanes = std::min<std::int64_t>(kRecurrenceLanes, problem.batch * key_heads);
    std::int64_t bytes = lanes * kF32 *
                         recurrence_workspace_numel(rows, problem.value_heads / problem.key_heads,
                                                    problem.key_dim, problem.value_dim);
    if (cp == 1) return bytes;
    if (trades) {  // outputs where they are computed, and packed on their way
      const Recurrence& r = sizes_.recurrence;
      return bytes +
             2 * sizes_.tokens * ((r.convolved() + r.value_width()) * width_ + 2 * r.value_heads * kF32);
    }
    std::int64_t pairs = 0;  // that come from afar
    for (std::int64_t n = 1; n < chunks * cp; n *= 2) ++pairs;
    if (layout_.scan == StateScan::all_gather) pairs = chunks * cp - 2;
    if (layout_.scan == StateScan::sequential) pairs = 0;
    const std::int64_t state = problem.state_numel() * kF32, pair = state + problem.transition_numel() * kF32;
    return bytes + chunks * 2 * state + pairs * (layout_.scan == StateScan::all_gather ? 1 : chunks) * pair;
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
  const AttentionMemory attention_;
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
  // has the head. Where layers have different MLPs, any of them: of those between the ends that have the same
  // layers, the first, whose activations wait longest.
  std::vector<std::pair<Layers, Layers>> seen;
  for (int rank = 0; rank < layout.pp; ++rank) {
    if (layers_of.alike() && rank > 1 && rank < layout.pp - 1) continue;
    Layers layers, most;
    for (int chunk = 0; chunk < layout.virtual_stages; ++chunk) {
      const auto stage = stages.begin() + std::ptrdiff_t{chunk} * layout.pp + rank;
      const Layers of_stage = layers_of(std::accumulate(stages.begin(), stage, std::int64_t{0}), *stage);
      layers.add(of_stage);
      if (chunk == 0 || (!layers_of.alike() && of.kept_by(of_stage) > of.kept_by(most))) most = of_stage;
    }
    if (layers_of.alike()) most = layers_of(0, largest);
    if (rank > 0 && rank < layout.pp - 1 && workload.phase == Phase::training) {
      const std::pair of_rank{layers, most};
      if (std::find(seen.begin(), seen.end(), of_rank) != seen.end()) continue;
      seen.push_back(of_rank);
    }
    const Memory memory = of.of(rank, layers, most);
    if (memory.used() > result.used()) result = memory;
  }
  return result;
}

}  // namespace cp
