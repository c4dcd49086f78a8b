#include "shared/transformer/least_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "shared/transformer/attention_memory.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/sizes.h"
#include "shared/transformer/step_order.h"

namespace cp {

namespace {

using Layers = CountedLayers;

constexpr std::int64_t kF32 = 4;
// Slots for activations that wait in host memory; activations.h says why two are enough.
constexpr std::int64_t kHeld = 2;

}  // namespace

// Of one layout, whatever its loss_chunks are, which most() is told of.
class LeastMemory::OfLayout {
 public:
  // `living` is null where a micro-batch has several plans, or is not trained. `all` counts the model's
  // layers.
  OfLayout(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
           const MemoryRules& rules, std::shared_ptr<const LivingBuffers> living,
           const ByParts<std::int64_t>& all)
      : model_(model),
        workload_(workload),
        layout_(layout),
        rules_(rules),
        living_(std::move(living)),
        sizes_(local_sizes(model, workload, layout)),
        attention_(model, workload, layout_, sizes_),  // which keep what they are given
        width_(size_bytes(workload.dtype)),
        training_(workload.phase == Phase::training) {
    for (const Mixer mixer : kMixers) {
      if (count_of(all, mixer) == 0) continue;
      OfMixer& of = mixers_[static_cast<std::size_t>(mixer)];
      const MixerMemory* memory = &attention_;
      if (const MixerFacts* facts = facts_of(mixer); facts != nullptr) {
        of.own = facts->memory(model, workload, layout_, sizes_);
        memory = of.own.get();
      }
      if (mixer == Mixer::none) continue;
      of.kept = memory->kept(), of.inside = memory->bytes_inside(), of.workspace = memory->workspace_bytes();
      of.moments = memory->moments();
    }
    for (const Having what : kHaving) {
      if (count_of(all, what) > 0) kept_with_[idx_of(what)] = made_kept_with(what);
    }
  }

  // Of the ranks of which one may need most memory.
  void look_at(const std::vector<RankLayers::OfRank>& ranks) {
    for (const RankLayers::OfRank& of_rank : ranks) {
      last_ = beside_loss(of_rank);
      if (of_rank.rank == layout_.pp - 1) break;
      const Memory memory = with_loss(last_, 0);
      if (memory.used() > most_before_last_.used()) most_before_last_ = memory;
    }
  }

  bool is_of(const ParallelLayout& layout) const {
    ParallelLayout same = layout;
    same.loss_chunks = layout_.loss_chunks;
    return same == layout_;
  }

  // Of the rank that needs most.
  Memory most(int loss_chunks) const {
    const Memory last = with_loss(last_, logits(loss_chunks));
    return last.used() > most_before_last_.used() ? last : most_before_last_;
  }

 private:
  // What a slot has room for: the activations of one micro-batch that any of these stages keeps for the
  // backward pass. Each of them has a place of its own, which is as large as the stage with most of it needs,
  // so that stages of different layers need more than any one of them.
  struct Slot {
    std::int64_t inputs = 0, rest = 0;
  };
  Slot slot_of(const std::vector<Layers>& stages) const {
    Slot slot;
    for (const Layers& stage : stages)
      slot.inputs = std::max(slot.inputs, stage.count() * kept_with(Having::anything).input);
    for (std::size_t home = 0; home < kMostHomes; ++home) {
      for (const Having what : kHaving) {
        std::int64_t most = 0;
        for (const Layers& stage : stages) most = std::max(most, count_of(stage.keeping[home], what));
        if (most > 0) slot.rest += most * beside_input(kept_with(what));
      }
    }
    return slot;
  }

  // What a rank needs, but for the loss, and what is counted from all of it.
  struct BesideLoss {
    Memory memory;
    std::int64_t in_update = 0;    // bytes that the update makes for itself
    std::int64_t gone = 0;         // activations that are gone by then
    std::int64_t around_loss = 0;  // bytes that live while the loss is at work
  };
  // Of a pipeline rank with those layers, and as many forward passes of its stages in flight.
  BesideLoss beside_loss(const RankLayers::OfRank& of_rank) const {
    const auto& [rank, layers, stages] = of_rank;
    const bool first = rank == 0, last = rank == layout_.pp - 1;
    BesideLoss beside;
    Memory& memory = beside.memory;
    beside.in_update = add_parameters(memory, layers, first, last);
    if (training_) {
      memory.activations =
          layout_.host_activations ? slots_of_activations(layers) : in_slots(rank, slot_of(stages));
      if (count_of(layers.with, Mixer::attention) > 0) memory.activations += positions();
      // Slots of the passes in flight stay where they are. What host memory sends back has slots that its
      // pass makes.
      beside.gone = layout_.pp == 1            ? memory.activations
                    : layout_.host_activations ? slots_of_inputs(layers)
                                               : 0;
    } else {
      memory.kv_cache = attention_.cached_elements(rank) *
                        (rules_.cached_bytes > 0 ? rules_.cached_bytes : size_bytes(workload_.kv_dtype));
      for (const Mixer mixer : kMixers) {
        if (const auto& own = of(mixer).own; own != nullptr)
          memory.kv_cache += count_of(layers.with, mixer) * own->cached_bytes();
      }
    }
    std::optional<AtWork> most;
    for (const LayerParts parts : kLayerParts) {
      if (layers.with[parts] == 0) continue;
      const AtWork of = at_work(parts, layers);
      if (!most || of.sum() > most->sum()) most = of;
    }
    memory.unsharded = most->unsharded, memory.working = most->working, memory.attention = most->attention;
    // All of them keep what they made while the first of all losses is at work, that of the deepest one.
    if (last) beside.around_loss = kept_of_predictions() + gathered_around_loss(layers);
    memory.communicators = communicator_bytes(workload_, layout_, rules_);
    memory.context = rules_.context_bytes;
    return beside;
  }

  // With the bytes of logits, on the last rank, and of what is made of them.
  Memory with_loss(const BesideLoss& beside, std::int64_t logits) const {
    Memory memory = beside.memory;
    memory.logits = logits + beside.around_loss;
    // The update of a stage has the shards of its gradients, when nothing of a micro-batch is at work.
    const std::int64_t at_work =
        std::max(memory.unsharded + memory.working + memory.attention, memory.logits);
    if (layout_.virtual_stages == 1)
      memory.working += std::max<std::int64_t>(0, beside.in_update - beside.gone - at_work);
    memory.slack =
        static_cast<std::int64_t>(std::llround(rules_.slack * static_cast<double>(memory.allocated())));
    return memory;
  }

  // In the workload's dtype; and their gradient, or before it comes what the loss makes of them in f32.
  std::int64_t logits(int loss_chunks) const {
    if (!training_) return layout_.micro_batch * sizes_.vocab * kF32;
    const auto f32 = static_cast<std::int64_t>(std::llround(rules_.loss_f32_copies * kF32));
    return unsharded_head(loss_chunks) +
           ceil_div(sizes_.tokens, loss_chunks) * sizes_.vocab * (width_ + std::max(width_, f32)) +
           sizes_.tokens * model_.hidden * width_;
  }

  // What a rank keeps for all passes in flight, with the slots of inputs that transfers touch.
  std::int64_t in_slots(int rank, const Slot& slot) const {
    if (layout_.pp == 1) return slot.inputs + slot.rest;
    const std::int64_t micro_batches = accumulation(workload_, layout_),
                       passes = in_flight(rank, layout_.pp, layout_.virtual_stages, micro_batches),
                       rows = slots_of_rows(rank, layout_.pp, layout_.virtual_stages, micro_batches);
    return passes * slot.rest + rows * slot.inputs;
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
    // What routers add to their scores, whole on every rank of the layers; and the loads that move it.
    const Experts routed = model_.experts.value_or(Experts{});
    if (routed.corrects_scores) memory.parameters += with_experts * routed.count * kF32;
    if (routed.moves_corrections) memory.gradients += with_experts * routed.count * kF32;
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
  std::int64_t unsharded_head(int loss_chunks) const {
    if (layout_.sharding_size() == 1) return 0;
    const std::int64_t table = model_.tied_embeddings ? sizes_.embedding : sizes_.head;
    if (table < layout_.threshold) return 0;
    return table * width_ *
           ((layout_.keeps_whole_parameters() ? 0 : 1) +
            (layout_.keeps_whole_gradients() || loss_chunks == 1 ? 0 : 1));
  }

  // ---- what a layer keeps, part by part ----

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
    const bool parallel = model_.parallel_blocks;  // with one norm, and nothing between the two
    const std::int64_t rows = sizes_.tokens_tp * model_.hidden * width_,
                       before = model_.norms_before ? rows : 0,
                       behind = model_.norms_behind ? rows : 0;  // what is normalized behind
    switch (what) {
      case Having::anything:
        return {.input = rows};
      case Having::mixer:
        return {.cheap = before, .rest = behind};
      case Having::mlp:
        return {.cheap = parallel ? 0 : before, .rest = behind};
      case Having::both:
        return {.rest = parallel ? 0 : rows};  // between the two
      case Having::dense:
        return kept_of_mlp(Mlp::dense);
      case Having::experts:
        return kept_of_mlp(Mlp::experts);
      default:
        break;
    }
    for (const Mixer mixer : kMixers) {
      if (what == having(mixer)) return of(mixer).kept;
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
    const OfMixer& mixer = this->of(of.mixer);
    const std::int64_t kept = mixer.kept.rest, workspace = mixer.workspace, inside = mixer.inside;
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
    for (const auto& [bytes, allocated, has_gradients] : mixer.moments)
      moment(bytes, has_gradients ? layer_gradients + expert_gradients : 0, allocated);
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
  // Where some layers are made again and others keep what they made, nothing is claimed of the former: it may
  // be the first of all, when nothing is kept any more.
  bool is_made_again() const { return training_ && layout_.recompute.kind == Recompute::Kind::full; }

  // Sines and cosines of a whole sequence, which every rank with attention has: with cp they grow beside rows
  // that do not.
  std::int64_t positions() const {
    return model_.numerics.rotary_tables() * workload_.seq_len * model_.rotated_dim() * kF32;
  }

  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout layout_;
  const MemoryRules& rules_;
  const std::shared_ptr<const LivingBuffers> living_;
  const LocalSizes sizes_;
  const AttentionMemory attention_;
  const std::int64_t width_;
  const bool training_;
  // What follows is asked for of each rank and moment. Of a mixer that the model has, bytes:
  struct OfMixer {
    std::unique_ptr<MixerMemory> own;  // beside attention
    LayerKept kept;
    std::int64_t workspace = 0, inside = 0;
    std::vector<MixerMemory::Moment> moments;
  };
  const OfMixer& of(Mixer mixer) const { return mixers_[static_cast<std::size_t>(mixer)]; }
  std::array<LayerKept, kHaving.size()> kept_with_;  // by Having
  std::array<OfMixer, kMixers.size()> mixers_;       // by Mixer

  Memory most_before_last_;  // of the ranks before the last, of that which needs most
  BesideLoss last_;
};

LeastMemory::LeastMemory(const Transformer& model, const Workload& workload, const MemoryRules& rules,
                         LivingBuffersOf living)
    : model_(model),
      workload_(workload),
      rules_(rules),
      layers_(model, workload.phase),
      living_(std::move(living)) {}
LeastMemory::~LeastMemory() = default;

std::shared_ptr<const LivingBuffers> LeastMemory::living(const ParallelLayout& layout,
                                                         const StageLayers& layers) const {
  // Of buckets of several layers nothing is claimed of what lives beside a layer.
  if (layout.pp > 1 || workload_.phase != Phase::training || layout.bucket > 1) return nullptr;
  if (living_) return living_(layers, layout.recompute);
  return std::make_shared<LivingBuffers>(living_buffers(layers, layout.recompute));
}

Memory LeastMemory::of(const ParallelLayout& layout) {
  if (last_ == nullptr || !last_->is_of(layout)) {
    std::vector<int> homes;
    if (layout.window_balance || layout.scan_balance) homes = homes_of_layers(model_, workload_, layout);
    const StageLayers all_layers = layers_.all(homes);
    last_ = std::make_unique<OfLayout>(model_, workload_, layout, rules_, living(layout, all_layers),
                                       layers_.counts());
    last_->look_at(layers_.of(layout, all_layers));
  }
  return last_->most(layout.loss_chunks);
}

Memory least_memory_of(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                       const MemoryRules& rules) {
  return LeastMemory(model, workload, rules).of(layout);
}

}  // namespace cp
