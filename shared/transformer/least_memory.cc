#include "shared/transformer/least_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shared/plan/recurrence_rules.h"
#include "shared/transformer/attention_memory.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/sizes.h"
#include "shared/transformer/step_order.h"

namespace cp {

// How many layers there are with which parts, and how many of these keep more than their input, at each home.
struct CountedLayers {
  ByParts<std::int64_t> with;
  std::array<ByParts<std::int64_t>, kMostHomes> keeping;
  std::array<bool, kMostHomes> inputs_at{};  // whether there are inputs of layers, or of what is behind them

  std::int64_t count() const { return count_of(with); }
  bool operator==(const CountedLayers&) const = default;
  void add(const CountedLayers& more) {
    for (const LayerParts parts : kLayerParts) {
      with[parts] += more.with[parts];
      for (std::size_t home = 0; home < keeping.size(); ++home)
        keeping[home][parts] += more.keeping[home][parts];
    }
    for (std::size_t home = 0; home < inputs_at.size(); ++home) inputs_at[home] |= more.inputs_at[home];
  }
};

namespace {

using Layers = CountedLayers;

constexpr std::int64_t kF32 = 4;
// Slots for activations that wait in host memory; activations.h says why two are enough.
constexpr std::int64_t kHeld = 2;

// Entry n: how many of the first n layers have which parts.
std::vector<ByParts<std::int64_t>> counted_before(std::span<const int> kinds,
                                                  std::span<const LayerParts> parts_of_kinds) {
  std::vector<ByParts<std::int64_t>> before(1);
  before.reserve(kinds.size() + 1);
  for (const int kind : kinds) {
    before.push_back(before.back());
    ++before.back()[parts_of_kinds[idx(kind)]];
  }
  return before;
}

// Counts layers of a model. A search asks for millions of these, so that it takes differences of what was
// counted once where it can.
class LayersOf {
 public:
  // `layers` has all layers of the model, and their homes if there is more than one.
  LayersOf(const StageLayers& layers, std::span<const ByParts<std::int64_t>> before,
           const Recompute& recompute)
      : layers_(layers), before_(before), recompute_(recompute) {}

  // Whether all layers have the same parts, and one home.
  bool alike() const {
    return layers_.homes.empty() && before_.back()[layers_.parts(0)] == std::ssize(layers_.kinds);
  }

  // Layers first .. first + count - 1, which are a stage of their own.
  Layers operator()(std::int64_t first, std::int64_t count) const {
    Layers layers;
    for (const LayerParts parts : kLayerParts)
      layers.with[parts] = before_[idx(first + count)][parts] - before_[idx(first)][parts];
    if (!layers_.homes.empty()) {
      const StageLayers stage{layers_.kinds.subspan(idx(first), idx(count)), layers_.parts_of_kinds,
                              layers_.homes.subspan(idx(first), idx(count + 1))};
      layers.keeping = layers_that_keep(stage, recompute_);
      for (std::int64_t layer = 0; layer <= count; ++layer) layers.inputs_at[idx(stage.home(layer))] = true;
      return layers;
    }
    layers.inputs_at.front() = true;
    ByParts<std::int64_t>& keeping = layers.keeping.front();
    if (recompute_.kind != Recompute::Kind::full) keeping = layers.with;
    if (recompute_.kind != Recompute::Kind::every) return layers;
    for (std::int64_t layer = 0; layer < count; ++layer) {
      if (is_recomputed(layer, recompute_)) --keeping[layers_.parts(first + layer)];
    }
    return layers;
  }

 private:
  const StageLayers layers_;
  const std::span<const ByParts<std::int64_t>> before_;
  const Recompute& recompute_;
};

class MemoryModel {
 public:
  // `living` is null where a micro-batch has several plans, or is not trained. `all` counts the model's
  // layers.
  MemoryModel(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
              const MemoryRules& rules, std::shared_ptr<const LivingBuffers> living,
              const ByParts<std::int64_t>& all)
      : model_(model),
        workload_(workload),
        layout_(layout),
        rules_(rules),
        living_(std::move(living)),
        sizes_(local_sizes(model, workload, layout)),
        attention_(model, workload, layout, sizes_),
        width_(size_bytes(workload.dtype)),
        training_(workload.phase == Phase::training) {
    if (model.recurrence) scan_ = scan_of_a_rank();
    for (const Having what : kHaving) {
      if (count_of(all, what) > 0) kept_with_[idx_of(what)] = made_kept_with(what);
    }
    for (const LayerParts parts : kLayerParts) {
      if (all[parts] == 0) continue;
      kept_[parts] = kept_of_layer(parts);
      OfMixer& mixer = mixers_[static_cast<std::size_t>(parts.mixer)];
      mixer = {kept_by_mixer(parts.mixer), workspace_of(parts.mixer), mixer_inside(parts.mixer) * width_};
    }
  }

  // What these layers keep of one micro-batch for the backward pass.
  std::int64_t kept_by(const Layers& layers) const {
    std::int64_t bytes = 0;
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] == 0) continue;
      bytes += layers.with[parts] * kept_[parts].input;
      for (const ByParts<std::int64_t>& at_home : layers.keeping)
        bytes += at_home[parts] * beside_input(kept_[parts]);
    }
    return bytes;
  }

  // Of a pipeline rank with those layers, and as many forward passes of the larger of its stages in flight.
  Memory of(int rank, const Layers& layers, const Layers& most_of_a_stage) const {
    const bool first = rank == 0, last = rank == layout_.pp - 1;
    Memory memory;
    const std::int64_t in_update = add_parameters(memory, layers, first, last);
    if (training_) {
      memory.activations = layout_.host_activations
                               ? slots_of_activations(layers)
                               : in_slots(rank, layout_.virtual_stages == 1 ? layers : most_of_a_stage);
      if (count_of(layers.with, Mixer::attention) > 0) memory.activations += positions();
    } else {
      memory.kv_cache = attention_.cached_elements(rank) *
                        (rules_.cached_bytes > 0 ? rules_.cached_bytes : size_bytes(workload_.kv_dtype));
      memory.kv_cache += count_of(layers.with, Mixer::recurrence) * cached_by_recurrence();
    }
    std::optional<AtWork> most;
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] == 0) continue;
      const AtWork of = at_work(parts, layers);
      if (!most || of.sum() > most->sum()) most = of;
    }
    memory.unsharded = most->unsharded, memory.working = most->working, memory.attention = most->attention;
    // All of them keep what they made while the first of all losses is at work, that of the deepest one.
    if (last) memory.logits = logits() + kept_of_predictions() + gathered_around_loss(layers);
    // The update of a stage has the shards of its gradients, when nothing of a micro-batch is left.
    const std::int64_t at_work =
        std::max(memory.unsharded + memory.working + memory.attention, memory.logits);
    if (layout_.virtual_stages == 1)
      memory.working += std::max<std::int64_t>(0, in_update - memory.activations - at_work);
    memory.communicators = communicator_bytes(workload_, layout_, rules_);
    memory.context = rules_.context_bytes;
    memory.slack =
        static_cast<std::int64_t>(std::llround(rules_.slack * static_cast<double>(memory.allocated())));
    return memory;
  }

 private:
  // What a rank keeps of a stage for all passes in flight, with the slots of inputs that transfers touch.
  std::int64_t in_slots(int rank, const Layers& stage) const {
    if (layout_.pp == 1) return kept_by(stage);
    const std::int64_t micro_batches = accumulation(workload_, layout_),
                       passes = in_flight(rank, layout_.pp, layout_.virtual_stages, micro_batches),
                       rows = slots_of_rows(rank, layout_.pp, layout_.virtual_stages, micro_batches);
    std::int64_t inputs = 0;
    for (const LayerParts parts : kLayerParts) inputs += stage.with[parts] * kept_[parts].input;
    return passes * kept_by(stage) + (rows - passes) * inputs;
  }

  // Which prediction layers have.
  LayerParts last_parts() const { return model_.parts_of(model_.kinds[idx(model_.last_kind())]); }

  // Returns the bytes that the update makes for itself.
  std::int64_t add_parameters(Memory& memory, Layers layers, bool first, bool last) const {
    const bool head_here = last && !model_.tied_embeddings,
               embedding_here = first || (last && model_.embeds_behind_layers());
    const std::int64_t predictions = last ? model_.prediction_layers : 0;
    layers.with[last_parts()] += predictions;
    const std::int64_t table = embedding_here ? sizes_.embedding : 0,
                       head = (head_here ? sizes_.head : 0) + (last ? sizes_.final_norm : 0);
    const std::int64_t with_experts = count_of(layers.with, Mlp::experts);
    if (!training_) {
      const std::int64_t ends = table + head + predictions * sizes_.prediction;
      std::int64_t of_layers = with_experts * sizes_.expert_layer;
      for (const LayerParts parts : kLayerParts) of_layers += layers.with[parts] * sizes_.layer[parts];
      memory.parameters =
          std::llround(static_cast<double>(of_layers) * rules_.served_layer_bytes) + ends * width_;
      return 0;
    }
    const std::int64_t ranks = layout_.sharding_size();
    // Each bucket of layers is sharded by itself where it is gathered by itself, else all layers of the same
    // parts together; the embedding, and the head with its norm, by themselves.
    const auto shard_of = [&](std::int64_t layers_of_unit, std::int64_t numel, std::int64_t small,
                              std::int64_t sharing) {
      if (layout_.keeps_whole_parameters()) return ceil_div(layers_of_unit * numel, sharing);
      return of_buckets(layers_of_unit, [&](std::int64_t count) {
        return count * small + ceil_div(count * (numel - small), sharing);
      });
    };
    Shared dense, of_experts;
    std::int64_t whole = 0;  // of units of small tensors alone, which no ranks share
    const auto add = [&](Shared& to, std::int64_t layers_of_unit, std::int64_t numel, std::int64_t small,
                         std::int64_t sharing) {
      if (sharing > 1 && numel > 0 && small == numel) {
        whole += layers_of_unit * numel;
        return;
      }
      to.numel += layers_of_unit * numel;
      to.shard += shard_of(layers_of_unit, numel, small, sharing);
    };
    add(dense, 1, table, embedding_here ? sizes_.small_embedding : 0, ranks);
    add(dense, 1, head, last ? sizes_.small_head : 0, ranks);
    for (const LayerParts parts : kLayerParts)
      add(dense, layers.with[parts], sizes_.layer[parts], sizes_.small_layer[parts], ranks);
    add(dense, predictions, sizes_.prediction, sizes_.small_prediction, ranks);
    add(of_experts, with_experts, sizes_.expert_layer, sizes_.small_experts, expert_ranks());
    return add_shards(memory, dense, ranks) + add_shards(memory, of_experts, expert_ranks()) +
           add_shards(memory, {whole, whole}, 1);
  }

  // Where as many ranks share the experts as share the parameters, each expert is whole.
  int expert_ranks() const { return std::max(1, layout_.sharding_size() / layout_.ep); }
  // The sum of a size of buckets over those of `count` layers; the last one may have fewer.
  template <class Size>
  std::int64_t of_buckets(std::int64_t count, const Size& size) const {
    const std::int64_t bucket = layout_.bucket, rest = count % bucket;
    return count / bucket * size(bucket) + (rest > 0 ? size(rest) : 0);
  }
  // Slots of a unit, or one for a layer that is alone: of what is gathered, and of gradients on their way.
  std::int64_t gather_turns(std::int64_t count) const {
    return std::min<std::int64_t>(layout_.prefetch + 1, count);
  }
  static std::int64_t turns(std::int64_t count) { return std::min<std::int64_t>(2, count); }
  // Whole pieces are as many elements as shards of equal sizes make.
  static std::int64_t padded(std::int64_t numel, std::int64_t ranks) {
    return ranks * ceil_div(numel, ranks);
  }

  // Parameters that some ranks share: all of them, and the shard of one rank.
  struct Shared {
    std::int64_t numel = 0, shard = 0;
  };
  std::int64_t add_shards(Memory& memory, const Shared& shared, std::int64_t ranks) const {
    const auto& [numel, shard] = shared;
    const std::int64_t gradient = size_bytes(workload_.gradient_dtype);
    const Optimizer& optimizer = workload_.optimizer;
    const std::int64_t f32 = optimizer.offload ? 0 : kF32 * shard;
    // A shard in f32 is what gathers read from; where nothing is gathered 16-bit parameters lie beside their
    // master copies.
    const bool whole = ranks == 1;
    const bool whole_ones = !whole && layout_.keeps_whole_parameters();  // counted as gathered
    memory.parameters += !optimizer.offload && !whole ? f32 : whole_ones ? 0 : width_ * shard;
    memory.master += whole && workload_.dtype != DType::f32 ? f32 : 0;
    // Of whole gradients that several ranks have the update makes shards, and frees them.
    const std::int64_t shards_of_whole = !whole && layout_.keeps_whole_gradients() ? gradient * shard : 0;
    memory.gradients += gradient * shard - shards_of_whole;
    memory.optimizer += optimizer.offload ? 0 : optimizer.states * size_bytes(optimizer.state_dtype) * shard;
    if (whole) return 0;
    if (layout_.keeps_whole_parameters()) memory.gathered += numel * width_;
    if (layout_.keeps_whole_gradients()) memory.gathered += numel * gradient;
    return shards_of_whole;
  }

  // What a unit of `count` pieces has in slots.
  struct Slots {
    std::int64_t gathered = 0;
    // On their way from the products that make them: gradients in the dtype of the products, and what is made
    // of these behind the products of a layer.
    std::int64_t made = 0, cast = 0;
  };
  // Where gradients stay, products add to them, in f32 or their own dtype; to those of another dtype what was
  // made is added, cast. Where they are scattered in the dtype in which they are made, they have slots that
  // take turns, as parameters do.
  Slots slots_of(std::int64_t numel, std::int64_t small, std::int64_t count, std::int64_t ranks) const {
    const std::int64_t gradient = size_bytes(workload_.gradient_dtype);
    const bool as_made = workload_.gradient_dtype == workload_.dtype;
    Slots slots;
    if (!training_ || count == 0) return slots;
    // Units of small tensors alone are whole. Of others a slot has a bucket.
    const bool shares = ranks > 1 && small < numel;
    const std::int64_t buckets = ceil_div(count, std::int64_t{layout_.bucket});
    const auto slot = [&](std::int64_t pieces) {
      return pieces * small + padded(pieces * (numel - small), ranks);
    };
    const std::int64_t largest = slot(std::min<std::int64_t>(layout_.bucket, count));
    if (shares && !layout_.keeps_whole_parameters()) {
      // Kept whole they have no slots beside that; kept in part, both.
      const std::int64_t over = std::gcd<std::int64_t>(layout_.reshard, ranks);
      const bool kept = layout_.reshard > 0 && over < ranks;
      if (!kept || over > 1) slots.gathered = gather_turns(buckets) * largest * width_;
      // The part of a bucket that is alone is of no use once it is gathered again, before there are
      // gradients.
      if (kept && (over == 1 || buckets > 1))
        slots.gathered += width_ * of_buckets(count, [&](std::int64_t pieces) {
                            return over == 1 ? slot(pieces) : padded(pieces * (numel - small), ranks) / over;
                          });
    }
    if (shares && !layout_.keeps_whole_gradients()) {
      slots.made = largest * width_ * (as_made ? turns(buckets) : 1);
      slots.cast = as_made ? 0 : largest * gradient;
    } else if (!as_made && workload_.gradient_dtype != DType::f32) {
      slots.made = numel * width_, slots.cast = numel * gradient;
    }
    return slots;
  }
  // Of the layers with these parts, without their experts; and of all experts.
  Slots slots_of_layers(LayerParts parts, const Layers& layers) const {
    return slots_of(sizes_.layer[parts], sizes_.small_layer[parts], layers.with[parts],
                    layout_.sharding_size());
  }
  Slots slots_of_experts(const Layers& layers) const {
    return slots_of(sizes_.expert_layer, sizes_.small_experts, count_of(layers.with, Mlp::experts),
                    expert_ranks());
  }

  // The forward pass has gathered to the slots that the backward pass gathers to.
  std::int64_t gathered_around_loss(const Layers& layers) const {
    if (layout_.pp > 1) return 0;
    std::int64_t bytes = slots_of_experts(layers).gathered;
    for (const LayerParts parts : kLayerParts) bytes += slots_of_layers(parts, layers).gathered;
    return bytes;
  }

  // What else lives while a layer is at work: slots of others, and of its own those that live whatever it
  // does; and what of all activations is gone by then.
  struct Beside {
    std::int64_t slots = 0, gone = 0;
    bool own_gradients = false, own_expert_gradients = false;  // whether these are among the slots
  };
  Beside beside(LayerParts of, const Layers& layers, const LivingBuffers::Moment& moment) const {
    Beside beside;
    const auto add = [&](UnitSet unit, bool own, const Slots& slots, bool& own_gradients) {
      if ((moment.gathered & unit) != 0 && !own) beside.slots += slots.gathered;
      if ((moment.reduced & unit) == 0) return;
      beside.slots += slots.made + slots.cast;
      own_gradients = own_gradients || own;
    };
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] > 0)
        add(unit_of(parts), parts == of, slots_of_layers(parts, layers), beside.own_gradients);
    }
    add(kExpertUnit, of.mlp == Mlp::experts, slots_of_experts(layers), beside.own_expert_gradients);
    // Slots for what waits in host memory live while they are used.
    if (layout_.host_activations) {
      beside.gone = slots_of_activations(layers) - slots_of_inputs(layers);
      return beside;
    }
    for (int home = 0; home < kMostHomes; ++home) {
      for (const Having what : kHaving) {
        const std::int64_t count = count_of(layers.keeping[idx(home)], what);
        if (count > 0 && (moment.kept & stack_of(what, home)) == 0)
          beside.gone += count * beside_input(kept_with(what));
      }
    }
    return beside;
  }

  // Of the head's weights and their gradients while the loss is at work.
  std::int64_t unsharded_head() const {
    if (layout_.sharding_size() == 1) return 0;
    const std::int64_t table = model_.tied_embeddings ? sizes_.embedding : sizes_.head;
    if (table < layout_.threshold) return 0;
    return table * width_ *
           ((layout_.keeps_whole_parameters() ? 0 : 1) +
            (layout_.keeps_whole_gradients() || layout_.loss_chunks == 1 ? 0 : 1));
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
    if (layout_.scan == StateScan::heads) {  // v at home, too, where it is added to the output
      if (r.rule == RecurrenceRule::decay) kept.rest += tokens * r.value_width() * width_;
      return kept;
    }
    const RecurrenceProblem problem = recurrence_problem(model_, workload_, layout_);
    kept.rest +=
        (scan_.incoming * problem.state_numel() + scan_.handed_on * problem.transition_numel()) * kF32;
    return kept;
  }

  LayerKept kept_of_mlp(Mlp mlp) const {
    const std::int64_t tokens = sizes_.tokens, ups = model_.up_matrices();
    LayerKept kept;
    if (mlp == Mlp::experts) {
      kept.cheap += sizes_.expert_tokens * sizes_.expert_columns * width_;
      kept.rest += sizes_.expert_tokens * ((ups * sizes_.expert_columns + model_.hidden) * width_ + kF32);
      // What the router said, and which experts were chosen.
      kept.rest += tokens * (model_.experts->count * width_ + model_.experts->top_k * kF32);
      if (model_.experts->shared_gate) kept.rest += tokens * width_;
    }
    if (layout_.mlp_chunks == 1) {
      kept.cheap += tokens * sizes_.columns(mlp) * width_;
      kept.rest += tokens * ups * sizes_.columns(mlp) * width_;
    }
    return kept;
  }

  // What the layers that have `what` keep of it; the model must have some.
  static std::size_t idx_of(Having what) { return static_cast<std::size_t>(what); }
  const LayerKept& kept_with(Having what) const { return kept_with_[idx_of(what)]; }
  LayerKept made_kept_with(Having what) const {
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
  // What the projection gives, and q, k and v; backward their gradients, and those of the output before and
  // behind its norm.
  std::int64_t recurrence_inside() const {
    const Recurrence& r = sizes_.recurrence;
    if (!training_) return sizes_.tokens * (r.projected() + r.convolved());
    return sizes_.tokens * (r.projected() + r.convolved() + 2 * r.value_width()) +
           sizes_.tokens * 2 * r.value_heads * kF32 / width_;
  }

  // The rows that each prediction layer embeds, takes and hands on; its two inputs, normalized; and what its
  // layer keeps. `every` counts the model's layers, of which it is none, and it stays on the GPU.
  std::int64_t kept_of_predictions() const {
    if (model_.prediction_layers == 0) return 0;
    const std::int64_t rows = kept_with(Having::anything).input;
    LayerKept kept = kept_of_layer(last_parts());
    kept.cheap += 2 * rows;
    const bool keeps = layers_that_keep(1, layout_.recompute) > 0;
    return model_.prediction_layers * (3 * rows + (keeps ? beside_input(kept) : 0));
  }

  // In host memory: of two layers, which take turns. Of what some layers alone have, and at either home,
  // there are two as well. In the passes of a stage these come and go, but for the layers' rows.
  std::int64_t slots_of_activations(const Layers& layers) const {
    std::int64_t bytes = slots_of_inputs(layers);
    if (layout_.pp > 1) return bytes;
    for (const ByParts<std::int64_t>& at_home : layers.keeping) {
      for (const Having what : kHaving) {
        if (count_of(at_home, what) > 0) bytes += kHeld * beside_input(kept_with(what));
      }
    }
    return bytes;
  }
  std::int64_t slots_of_inputs(const Layers& layers) const {
    std::int64_t bytes = 0;
    for (const bool inputs : layers.inputs_at)
      bytes += inputs ? kHeld * kept_with(Having::anything).input : 0;
    return bytes;
  }

  // What lives while a layer is at work, at the fullest of some moments. Rows between layers, or backward
  // their gradient, are there at each.
  struct AtWork {
    std::int64_t unsharded = 0, working = 0, attention = 0;
    std::int64_t sum() const { return unsharded + working + attention; }
  };
  AtWork at_work(LayerParts of, const Layers& layers) const {
    if (living_ == nullptr) return at_work(of, layers, Beside{});
    std::optional<AtWork> fullest;
    for (const LivingBuffers::Moment& moment : living_->at[of]) {
      const AtWork at = at_work(of, layers, beside(of, layers, moment));
      if (!fullest || at.sum() > fullest->sum()) fullest = at;
    }
    return *fullest;
  }
  AtWork at_work(LayerParts of, const Layers& layers, const Beside& beside) const {
    const bool experts = of.mlp == Mlp::experts;
    const auto [kept, workspace, inside] = mixers_[static_cast<std::size_t>(of.mixer)];
    const std::int64_t rows = (training_ ? 1 : 2) * sizes_.tokens_tp * model_.hidden * width_,
                       again = is_made_again() ? kept : 0;
    const Slots own = slots_of_layers(of, layers), of_experts = experts ? slots_of_experts(layers) : Slots{};
    const std::int64_t gathered = own.gathered + of_experts.gathered + beside.slots,
                       layer_gradients = beside.own_gradients ? 0 : own.made,
                       expert_gradients = beside.own_expert_gradients ? 0 : of_experts.made;
    std::optional<AtWork> fullest;
    // `working` may be less than nothing: what is gone by then is counted with all activations.
    const auto moment = [&](std::int64_t bytes, std::int64_t of_gradients, std::int64_t allocated = 0) {
      const AtWork at{gathered + of_gradients, rows + bytes - beside.gone - allocated, allocated};
      if (!fullest || at.sum() > fullest->sum()) fullest = at;
    };
    // In the mixer: its operands and their gradients, or what its strategy allocates. Of what a layer made
    // again for its mixer's backward pass some is gone by then.
    moment(std::max({inside, again, workspace}), layer_gradients + expert_gradients, workspace);
    // Of a recurrence that is computed where its rows are, both, but for the output behind its norm.
    if (of.mixer == Mixer::recurrence && training_ && !(layout_.scan == StateScan::heads && layout_.cp > 1)) {
      const std::int64_t behind_norm = sizes_.tokens * sizes_.recurrence.value_width() * width_;
      moment(inside - behind_norm + workspace, layer_gradients + expert_gradients, workspace);
    }
    // States of all chunks come at once, before there are gradients of the layer.
    if (of.mixer == Mixer::recurrence && scan_.from_afar > 0) {
      const RecurrenceProblem problem = recurrence_problem(model_, workload_, layout_);
      const std::int64_t states = scan_.from_afar * problem.state_numel() * kF32;
      moment(states, 0, states);
    }
    if (of.mlp == Mlp::none) return *fullest;
    // Nothing but what was made by then: of experts their own gradients, and of the MLP beside them none.
    const auto in_mlp = [&](const InMlp& at, std::int64_t more, std::int64_t of_gradients) {
      moment(more + at.before, 0);
      moment(more + at.behind, of_gradients);
    };
    const std::int64_t chunk = layout_.mlp_chunks > 1 ? sizes_.mlp_tokens : sizes_.tokens;
    in_mlp(moments_of_mlp(chunk * sizes_.columns(of.mlp), sizes_.tokens * model_.hidden,
                          layout_.row_ranks() > 1),
           again, experts ? 0 : layer_gradients);
    if (!experts) return *fullest;
    // Rows come to the experts, and their gradients do, which have a place on both sides of an all-to-all.
    const std::int64_t columns = sizes_.expert_tokens * sizes_.expert_columns,
                       arrived = sizes_.expert_tokens * model_.hidden,
                       taken = again + (is_made_again() ? arrived * width_ : 0);
    in_mlp(moments_of_mlp(columns, arrived, false), taken, expert_gradients);
    if (training_ && layout_.ep > 1) moment(taken + 2 * arrived * width_, 0);
    return *fullest;
  }
  // In an MLP of so many elements before its last product, and of so many rows times their width. Forward the
  // most is where the activation function is at work. Backward the gradient of the output is used, and then
  // the gradients of all that the products made exist together; or behind that, where that of the input is
  // made. With sequence parallelism the input, and the output's gradient, is whole rows.
  struct InMlp {
    std::int64_t before, behind;  // the first gradient of a weight
  };
  InMlp moments_of_mlp(std::int64_t columns, std::int64_t rows, bool gathered) const {
    const std::int64_t ups = model_.up_matrices();
    if (!training_) return {0, (ups + 1) * columns * width_};
    const std::int64_t whole = gathered ? rows : 0,
                       made = is_made_again() && layout_.mlp_chunks == 1 ? ups * columns : 0;
    const std::int64_t at = whole + (ups + 1) * columns + made,
                       behind = whole + ups * columns + (layout_.mlp_chunks == 1 ? rows : 0);
    return {(whole + columns + made) * width_, std::max(at, behind) * width_};
  }
  std::int64_t kept_by_mixer(Mixer mixer) const {
    return mixer == Mixer::attention    ? kept_with(Having::attention).rest
           : mixer == Mixer::recurrence ? kept_with(Having::recurrence).rest
                                        : 0;
  }
  std::int64_t workspace_of(Mixer mixer) const {
    return mixer == Mixer::attention    ? attention_.least_workspace_bytes()
           : mixer == Mixer::recurrence ? recurrence_workspace()
                                        : 0;
  }
  // Where some layers are made again and others keep what they made, nothing is claimed of the former: it may
  // be the first of all, when nothing is kept any more.
  bool is_made_again() const { return training_ && layout_.recompute.kind == Recompute::Kind::full; }

  // Sines and cosines of a whole sequence, which every rank with attention has: with cp they grow beside rows
  // that do not.
  std::int64_t positions() const {
    return model_.numerics.rotary_tables() * workload_.seq_len * model_.rotated_dim() * kF32;
  }

  // What a layer with a recurrence caches where a token is written, on the rank of the token, or where there
  // is one rank: the state, of which with heads every rank has a part, and the rows that the convolution saw
  // last. Of a prompt over several ranks nothing is claimed: others than the one that caches may need most.
  std::int64_t cached_by_recurrence() const {
    if (!model_.recurrence || (layout_.cp > 1 && workload_.phase == Phase::prefill)) return 0;
    const RecurrentCache cache = recurrent_cache(sizes_.recurrence, workload_.dtype);
    const bool spread = layout_.scan == StateScan::heads && layout_.cp > 1;
    return layout_.micro_batch * (cache.state / (spread ? layout_.cp : 1) + cache.convolved);
  }

  // Of the chunks of rank cp / 2, whose plans are read besides those of the busiest one: how many have states
  // that come in, how many hand these on, and whose states come from afar with all_gather, forward and
  // backward. That of the chunk before an own one comes to where it is kept.
  struct ScanShare {
    std::int64_t incoming = 0, handed_on = 0, from_afar = 0;
  };
  ScanShare scan_of_a_rank() const {
    const RecurrenceStrategy strategy = recurrence_strategy(layout_);
    ScanShare share;
    if (!training_ || layout_.cp == 1 || layout_.scan == StateScan::heads) return share;
    const std::int64_t cp = layout_.cp, chunks = has_two_chunks() ? 2 * cp : cp;
    // Where the mask deals rows, or they do not divide, others may have most; documents cut the ways of
    // states.
    if (strategy.balance.kind == Balance::Kind::cost ||
        layout_.strategy.balance.kind == Balance::Kind::cost || workload_.seq_len % (2 * cp) != 0 ||
        workload_.has_documents())
      return share;
    // In a group of Ulysses a rank has a part of two chunks, which may be the last one of all; the first rows
    // are rank 0's.
    const bool in_groups = layout_.strategy.ulysses_degree > 1;
    if (in_groups && chunks > cp) return {1, 0, 0};
    const auto own = [&](std::int64_t chunk) {
      return chunk == cp / 2 || (chunks > cp && chunk == chunks - 1 - cp / 2);
    };
    std::int64_t last = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      if (!own(chunk)) continue;
      last = chunk;
      share.incoming += chunk > 0 ? 1 : 0, share.handed_on += chunk > 0 && chunk + 1 < chunks ? 1 : 0;
    }
    // Groups may have the chunks in another order.
    if (layout_.scan != StateScan::all_gather || in_groups) return share;
    for (std::int64_t chunk = 0; chunk < last; ++chunk)
      share.from_afar += own(chunk) || own(chunk + 1) ? 0 : 1;
    return share;
  }
  // A rank may have its rows in two chunks, one after the other.
  bool has_two_chunks() const {
    return recurrence_strategy(layout_).balance.kind == Balance::Kind::head_tail && layout_.cp > 1;
  }

  // What recurrence plans allocate for the heads that are computed at once: backward the states of rows.
  std::int64_t recurrence_workspace() const {
    if (!training_) return 0;
    const RecurrenceProblem problem = recurrence_problem(model_, workload_, layout_);
    const bool trades = layout_.scan == StateScan::heads && layout_.cp > 1;
    const std::int64_t key_heads = problem.key_heads / (trades ? layout_.cp : 1),
                       rows = trades ? workload_.seq_len : ceil_div(sizes_.rows, has_two_chunks() ? 2 : 1),
                       lanes = std::min<std::int64_t>(kRecurrenceLanes, problem.batch * key_heads);
    return lanes * kF32 *
           recurrence_workspace_numel(rows, problem.value_heads / problem.key_heads, problem.key_dim,
                                      problem.value_dim);
  }

  // In the workload's dtype; and their gradient, or before it comes what the loss makes of them in f32.
  std::int64_t logits() const {
    if (!training_) return layout_.micro_batch * sizes_.vocab * kF32;
    const auto f32 = static_cast<std::int64_t>(std::llround(rules_.loss_f32_copies * kF32));
    return unsharded_head() + sizes_.chunk_tokens * sizes_.vocab * (width_ + std::max(width_, f32)) +
           sizes_.tokens * model_.hidden * width_;
  }

  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  const MemoryRules& rules_;
  const std::shared_ptr<const LivingBuffers> living_;
  const LocalSizes sizes_;
  const AttentionMemory attention_;
  const std::int64_t width_;
  const bool training_;
  // What follows is asked for of each rank and moment. Of a mixer that the model has, bytes:
  struct OfMixer {
    std::int64_t kept = 0, workspace = 0, inside = 0;
  };
  ScanShare scan_;
  std::array<LayerKept, kHaving.size()> kept_with_;  // by Having
  ByParts<LayerKept> kept_;                          // by a layer of the model with these parts
  std::array<OfMixer, 3> mixers_;                    // by Mixer
};

}  // namespace

// The pipeline ranks of which one may need most.
struct LeastMemory::Ranks {
  struct OfRank {
    int rank = 0;
    CountedLayers layers;               // of all its stages
    std::vector<CountedLayers> stages;  // those that differ; where all layers are alike, the largest
  };
  std::vector<OfRank> ranks;
};

LeastMemory::LeastMemory(const Transformer& model, const Workload& workload, const MemoryRules& rules,
                         LivingBuffersOf living)
    : model_(model),
      workload_(workload),
      rules_(rules),
      kinds_(model.order.empty() ? std::vector<int>(idx(model.layers), 0) : model.order),
      parts_(parts_of_kinds(model)),
      before_(counted_before(kinds_, parts_)),
      living_(std::move(living)) {}

std::shared_ptr<const LivingBuffers> LeastMemory::living(const ParallelLayout& layout,
                                                         const StageLayers& layers) const {
  // Of buckets of several layers nothing is claimed of what lives beside a layer.
  if (layout.pp > 1 || workload_.phase != Phase::training || layout.bucket > 1) return nullptr;
  if (living_) return living_(layers, layout.recompute);
  return std::make_shared<LivingBuffers>(living_buffers(layers, layout.recompute));
}

// The first rank, whose activations wait longest; the second, which may have more layers; the last, which
// has the head. Where layers have different MLPs, any of them: of those between the ends that have the same
// stages, the first, whose activations wait longest.
LeastMemory::Ranks LeastMemory::count(const ParallelLayout& layout, const StageLayers& all_layers) const {
  const LayersOf layers_of(all_layers, before_, layout.recompute);
  const std::vector<std::int64_t> stages = stage_layers(model_, layout);
  std::vector<std::int64_t> begins(stages.size());  // the first layer of each
  std::exclusive_scan(stages.begin(), stages.end(), begins.begin(), std::int64_t{0});
  const bool alike = layers_of.alike();
  Ranks counted;
  for (int rank = 0; rank < layout.pp; ++rank) {
    const bool between = rank > 0 && rank < layout.pp - 1;
    if (alike && between && rank > 1) continue;
    Ranks::OfRank of_rank{rank, {}, {}};
    for (int chunk = 0; chunk < layout.virtual_stages; ++chunk) {
      const std::size_t stage = idx(chunk) * idx(layout.pp) + idx(rank);
      const Layers of_stage = layers_of(begins[stage], stages[stage]);
      of_rank.layers.add(of_stage);
      std::vector<Layers>& known = of_rank.stages;
      if (alike && !known.empty()) {
        if (of_stage.count() > known.front().count()) known.front() = of_stage;
      } else if (std::find(known.begin(), known.end(), of_stage) == known.end()) {
        known.push_back(of_stage);
      }
    }
    const auto is_like = [&](const Ranks::OfRank& before) {
      return before.rank > 0 && before.layers == of_rank.layers && before.stages == of_rank.stages;
    };
    if (between && workload_.phase == Phase::training &&
        std::any_of(counted.ranks.begin(), counted.ranks.end(), is_like))
      continue;
    counted.ranks.push_back(std::move(of_rank));
  }
  return counted;
}

std::shared_ptr<const LeastMemory::Ranks> LeastMemory::ranks(const ParallelLayout& layout,
                                                             const StageLayers& layers) {
  RanksKey key{layout.pp,
               layout.virtual_stages,
               layout.recompute.kind,
               layout.recompute.every,
               {layers.homes.begin(), layers.homes.end()}};
  if (const auto found = ranks_.find(key); found != ranks_.end()) return found->second;
  auto counted = std::make_shared<const Ranks>(count(layout, layers));
  return ranks_.try_emplace(std::move(key), std::move(counted)).first->second;
}

Memory LeastMemory::of(const ParallelLayout& layout) {
  std::vector<int> homes;
  if (layout.window_balance || layout.scan_balance) homes = homes_of_layers(model_, workload_, layout);
  const StageLayers all_layers{kinds_, parts_, homes};
  const MemoryModel of(model_, workload_, layout, rules_, living(layout, all_layers), before_.back());
  Memory result;
  for (const Ranks::OfRank& of_rank : ranks(layout, all_layers)->ranks) {
    const Layers* most = &of_rank.stages.front();
    if (of_rank.stages.size() > 1) {
      std::int64_t most_kept = of.kept_by(*most);
      for (const Layers& stage : of_rank.stages) {
        const std::int64_t kept = of.kept_by(stage);
        if (kept > most_kept) most = &stage, most_kept = kept;
      }
    }
    const Memory memory = of.of(of_rank.rank, of_rank.layers, *most);
    if (memory.used() > result.used()) result = memory;
  }
  return result;
}

Memory least_memory_of(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                       const MemoryRules& rules) {
  return LeastMemory(model, workload, rules).of(layout);
}

}  // namespace cp
