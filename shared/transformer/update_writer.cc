#include "shared/transformer/update_writer.h"

#include <algorithm>
#include <numeric>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/row_rules_of.h"
#include "shared/transformer/tensor_places.h"

namespace cp {
namespace {

std::string name_of_layers(const Transformer& model, LayerParts parts) {
  std::string text;
  // Where other layers have experts.
  if (parts.mlp == Mlp::dense && parts.mixer != Mixer::none && model.has(Mlp::experts)) text += "dense_";
  // Of one part alone, or with an MLP.
  if (const MixerFacts* facts = facts_of(parts.mixer); facts != nullptr)
    text += parts.mlp == Mlp::none ? facts->alone : facts->with_mlp;
  if (parts.mlp == Mlp::none && parts.mixer == Mixer::attention) text += "attention_";
  if (parts.mixer == Mixer::none) text += parts.mlp == Mlp::experts ? "expert_" : "mlp_";
  return text + "layers";
}

std::int64_t index_of(Rank rank, const std::vector<Rank>& ranks) {
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

}  // namespace

// ---- units ----

StepUnits::StepUnits(const StepContext& context) {
  const ParallelLayout& layout = context.layout;
  const Workload& workload = context.workload;
  const RankGroups& groups = context.groups;
  const RankGroups::DataMesh dense = groups.data_mesh(), of_ep = layout.ep > 1 ? groups.expert_mesh() : dense;
  const auto param_of = [&](const RankGroups::DataMesh& data, std::int64_t numel, bool split, bool small) {
    HsdpOptions options;
    options.shard = data.shard, options.replicate = data.replicate;
    if (small) options.min_numel = numel * layout.ep + 1;
    // Sums, not averages: steps scale their losses instead (flat_unit()).
    options.reduce = ReduceOp::sum;
    options.param_dtype = workload.dtype, options.reduce_dtype = workload.gradient_dtype;
    std::vector<Placement> placements(idx(data.mesh.num_axes()), Replicate{});
    if (split) placements.back() = Shard{0, Chunked{}};
    return HsdpParam(make_layout(data.mesh, std::move(placements), {split ? numel * layout.ep : numel},
                                 workload.optimizer.offload ? workload.dtype : DType::f32),
                     options);
  };
  // Along ep ranks have different experts. Seen from HsdpParam their parameter is one of ep times the
  // elements, which is split along the axis "ep" before data parallelism splits it further. Who shares a unit
  // does not depend on its size, and takes long to find among thousands of ranks: once for each mesh.
  const bool split = layout.ep > 1;
  const auto of_mesh = [&](const RankGroups::DataMesh& data, std::int64_t numel, bool by_ep,
                           bool small = false) {
    ShardedUnit unit = flat_unit(param_of(data, numel, by_ep, small), groups.data_index());
    unit.ranks = groups.at_data_indices(unit.ranks), unit.replicas = groups.at_data_indices(unit.replicas);
    return unit;
  };
  const ShardedUnit of_dense = of_mesh(dense, context.embedding.numel(), false),
                    of_split = split && context.model.has(Mlp::experts)
                                   ? of_mesh(of_ep, context.experts.numel, true)
                                   : of_dense;
  sharing = of_dense.ranks;
  // `small` of the elements of a piece are in tensors below the threshold.
  const auto unit = [&](std::string name, std::int64_t numel, std::int64_t small, std::int64_t pieces,
                        bool of_experts) {
    StepUnit made;
    ShardedUnit& sharded = made.sharded;
    sharded = of_experts ? of_split : of_dense;
    const bool shares = sharded.ranks.size() > 1, all_small = shares && numel > 0 && small == numel;
    if (all_small) {
      sharded = of_experts ? of_mesh(of_ep, context.experts.numel, split, true)
                           : of_mesh(dense, context.embedding.numel(), false, true);
    } else if (shares) {
      sharded.replicated = small;
    }
    sharded.numel = numel;
    sharded.name = std::move(name), sharded.pieces = pieces;
    sharded.group = of_experts && split ? "fsdp_experts" : "fsdp";
    made.replica_group =
        str(of_experts && split ? "replicas_experts" : "replicas", all_small ? "_whole" : "");
    // Serving keeps whole parameters, and has no gradients to scatter.
    if (!context.training) sharded.resident = true;
    if (!context.training) sharded.resident_sums = true;
    if (context.training && sharded.ranks.size() > 1) {
      sharded.resident = layout.keeps_whole_parameters();
      sharded.resident_sums = layout.keeps_whole_gradients();
      sharded.prefetch = layout.prefetch;
      sharded.resident_parameters = "unsharded", sharded.resident_gradients = "unsharded/gradients";
    }
    sharded.sends_gradients = workload.optimizer.offload && completes_gradients(context, made);
    return made;
  };
  // Of layers alone: the ends are used once, or soon again. Experts are shared by other ranks, over as many
  // of which as divide these; over all of them is what shards are.
  const auto set_loops = [&](StepUnit& made) {
    const std::int64_t ranks = made.sharded.num_ranks(), over = std::gcd(layout.reshard, ranks);
    if (layout.reshard > 0 && over < ranks) made.sharded.kept_over = over;
    if (!made.sharded.whole()) made.sharded.bucket = layout.bucket;
  };
  const auto& with = context.layers_with;
  for (const LayerParts parts : kLayerParts) {
    const LayerWeights& weights = context.layer[parts];
    layers[parts] = unit(name_of_layers(context.model, parts), with[parts] > 0 ? weights.numel : 0,
                         weights.small, with[parts], false);
    set_loops(layers[parts]);
  }
  const std::int64_t with_experts = count_of(with, Mlp::experts);
  experts = unit("experts", with_experts > 0 ? context.experts.numel : 0, context.experts.small, with_experts,
                 true);
  set_loops(experts);
  // With stages, the last one has a table of its own for the head, even if it is tied: the head's unit.
  embedding = unit("embedding", context.has_embedding() ? context.embedding.numel() : 0,
                   context.sizes.small_embedding, 1, false);
  prediction = unit("prediction", context.predictions > 0 ? context.prediction.numel : 0,
                    context.prediction.small, std::max<std::int64_t>(1, context.predictions), false);
  head = unit("head", context.last_stage ? context.head.numel : 0, context.head.small, 1, false);
}

bool StepUnits::completes_gradients(const StepContext& context, const StepUnit& unit) {
  const bool sums_of_tp = unit.sharded.adds_gradients() && context.layout.tp > 1;
  return context.training && unit.sharded.replicas.size() == 1 && !sums_of_tp && !context.copies_table() &&
         !unit.sharded.resident_sums && unit.sharded.replicated == 0;
}

std::vector<const StepUnit*> StepUnits::present() const {
  std::vector<const StepUnit*> units;
  const auto add = [&](const StepUnit& unit) {
    if (unit.sharded.numel > 0) units.push_back(&unit);
  };
  for (const LayerParts parts : kLayerParts) add(layers[parts]);
  add(experts), add(embedding), add(prediction), add(head);
  return units;
}

// ---- update ----

void UpdateWriter::write() {
  const std::vector<const StepUnit*> units = units_.present();
  std::vector<View> gradients;
  if (context_.reduces_before_updates()) {
    for (const StepUnit* unit : units) gradients.push_back(own_gradients(*unit));
    norm_ = flat_view(writer_.builder().input("working/norm", DType::f32, 1), 0, 1);
  } else {
    gradients = reduce(units);
  }
  if (context_.workload.optimizer.offload) norm_to_host();
  for (std::size_t i = 0; i < units.size(); ++i) optimize(*units[i], gradients[i]);
  move_corrections();
}

void UpdateWriter::write_reduction() { reduce(units_.present()); }

std::vector<View> UpdateWriter::reduce(const std::vector<const StepUnit*>& units) {
  // The order matters: a gradient must be a sum over tp ranks and tied stages before data parallelism
  // scatters it, and the norm (for clipping) needs the gradients of all units before the first parameter
  // changes.
  add_up_replicated();
  add_up_tied_tables();
  std::vector<View> gradients;
  for (const StepUnit* unit : units) gradients.push_back(reduced_gradients(*unit));
  take_norm(units, gradients);
  return gradients;
}

BufferId UpdateWriter::whole_gradients(const StepUnit& unit) {
  for (const auto& [known, buffer] : whole_) {
    if (known == &unit) return buffer;
  }
  const ShardedUnit& u = unit.sharded;
  const std::string name = str(u.resident_sums ? u.resident_gradients : "gradients", "/", u.name);
  // An update behind the reductions reads its own block of them alone.
  const bool reads = context_.part == StepPart::update && context_.reduces_before_updates();
  PlanBuilder& builder = writer_.builder();
  const BufferId buffer = reads ? builder.input(name, u.gradient_dtype, u.whole_gradients_numel())
                                : builder.inout(name, u.gradient_dtype, u.whole_gradients_numel());
  whole_.emplace_back(&unit, buffer);
  return buffer;
}

void UpdateWriter::add_up_replicated() {
  if (context_.layout.tp == 1) return;
  const auto adds = [](const StepUnit& unit) {
    return unit.sharded.numel > 0 && unit.sharded.adds_gradients();
  };
  const auto for_each_unit = [&](const auto& add_up) {
    for (const LayerParts parts : kLayerParts) {
      if (adds(units_.layers[parts])) add_up(parts, context_.layer[parts]);
    }
  };
  for_each_unit([&](LayerParts parts, const LayerWeights&) {
    for (const Weight& summed : context_.summed_over_tp(parts)) {
      if (summed.numel() > 0)
        add_up_pieces(units_.layers[parts], "tp", context_.groups.tp_group(), summed.begin, summed.numel(),
                      "replicated weights");
    }
  });
  if (adds(units_.prediction) && writer_.splits_rows())
    add_up_pieces(units_.prediction, "tp", context_.groups.tp_group(), 0, context_.prediction.numel,
                  "prediction");
  if (adds(units_.head) && writer_.splits_rows()) {
    writer_.all_reduce("tp", context_.groups.tp_group(), ReduceOp::sum,
                       context_.head.norm.flat({whole_gradients(units_.head), 0, {}}), "tp",
                       "add up d final norm");
  }
  if (context_.model.kv_heads >= context_.layout.tp) return;
  const std::vector<Rank> sharing = context_.groups.tp_group_of_kv_head(context_.model.kv_heads);
  const std::int64_t q_width = context_.sizes.q_width, kv_width = context_.sizes.kv_width;
  for_each_unit([&](LayerParts parts, const LayerWeights& layer) {
    if (parts.mixer != Mixer::attention) return;
    const Weight kv = layer.qkv.part(q_width, 2 * kv_width);
    const StepUnit& unit = units_.layers[parts];
    add_up_pieces(unit, "tp_kv", sharing, kv.begin, kv.numel(), "k, v weights");
    if (context_.model.qkv_bias)
      add_up_pieces(unit, "tp_kv", sharing, layer.qkv_bias.begin + q_width, 2 * kv_width, "k, v biases");
    if (context_.model.qk_norm_of_all_heads)
      add_up_pieces(unit, "tp_kv", sharing, layer.k_norm.begin, layer.k_norm.numel(), "k norm");
  });
}

void UpdateWriter::add_up_pieces(const StepUnit& unit, const std::string& group,
                                 const std::vector<Rank>& ranks, std::int64_t begin, std::int64_t numel,
                                 const std::string& label) {
  const ShardedUnit& layers = unit.sharded;
  const BufferId buffer = whole_gradients(unit);
  // What makes latent rows, and replicated kv heads, are millions of elements of a layer: packed they would
  // need as much memory again for all layers. Chosen: 2 to 4 MB take longer on a link than its latency.
  constexpr std::int64_t kLeastAlone = std::int64_t{1} << 20;
  if (numel >= kLeastAlone) {
    for (std::int64_t piece = 0; piece < layers.pieces; ++piece) {
      writer_.all_reduce(group, ranks, ReduceOp::sum,
                         flat_view(buffer, layers.in_whole_gradients(piece, begin), numel), "tp",
                         str("add up d ", label));
    }
    return;
  }
  // One AllReduce for all layers: the norms of one layer are a few thousand elements, whose own AllReduce
  // would be nearly all latency. Pieces at the same place of full buckets are equally far apart.
  const std::int64_t full = layers.pieces / layers.bucket;
  std::vector<View> views;
  for (std::int64_t piece = 0; piece < layers.pieces; ++piece) {
    const bool is_full = piece < full * layers.bucket;
    if (is_full && piece >= layers.bucket) continue;  // with the piece of the first bucket
    const std::int64_t at = layers.in_whole_gradients(piece, begin),
                       next = is_full && full > 1 ? layers.in_whole_gradients(piece + layers.bucket, begin)
                                                  : at + numel;
    views.push_back({buffer, at, {is_full ? full : 1, numel}, {next - at, 1}, {}});
  }
  add_up_packed(views, group, ranks, "tp", label);
}

void UpdateWriter::add_up_packed(const std::vector<View>& views, const std::string& group,
                                 const std::vector<Rank>& ranks, const char* stream,
                                 const std::string& label) {
  std::int64_t numel = 0;
  for (const View& view : views) numel += view.numel();
  const Window packed = writer_.working(label, writer_.builder().dtype(views.front().buffer), numel);
  const auto copy = [&](bool packs) {
    std::int64_t at = 0;
    for (const View& view : views) {
      const View place = packed.dense(at, view.shape);
      packs ? writer_.copy(view, place, str("pack d ", label))
            : writer_.copy(place, view, str("unpack d ", label));
      at += view.numel();
    }
  };
  copy(true);
  writer_.all_reduce(group, ranks, ReduceOp::sum, packed.flat(0, numel), stream, str("add up d ", label));
  copy(false);
}

void UpdateWriter::add_up_small(const StepUnit& unit, const View& gradients) {
  const ShardedUnit& u = unit.sharded;
  if (u.replicated == 0) return;
  // Of each bucket those of its pieces come first.
  const std::int64_t full = u.pieces / u.bucket, rest = u.pieces % u.bucket, owned = u.owned_numel(u.bucket);
  std::vector<View> views;
  if (full > 0)
    views.push_back({gradients.buffer, gradients.offset, {full, u.bucket * u.replicated}, {owned, 1}, {}});
  if (rest > 0)
    views.push_back(flat_view(gradients.buffer, gradients.offset + full * owned, rest * u.replicated));
  add_up_packed(views, u.group + "_reduce", u.ranks, "fsdp_reduce", str("small tensors, ", u.name));
}

void UpdateWriter::add_up_tied_tables() {
  if (!context_.copies_table()) return;
  // The first stage's gradient comes from its look-up, the last stage's from the head, or from the look-ups
  // of prediction layers. Both add up the two and then make the same update, so their tables stay equal.
  const std::vector<Rank> ends = {context_.groups.on_pipeline_rank(0),
                                  context_.groups.on_pipeline_rank(context_.layout.pp - 1)};
  const std::int64_t numel = context_.embedding.numel();
  if (context_.first_stage) {
    writer_.all_reduce("tied", ends, ReduceOp::sum, flat_view(whole_gradients(units_.embedding), 0, numel),
                       "pp", "add up tied tables");
  }
  if (context_.last_stage) {
    const View of_last = context_.has_embedding()
                             ? flat_view(whole_gradients(units_.embedding), 0, numel)
                             : flat_view(whole_gradients(units_.head), context_.head.table.begin, numel);
    writer_.all_reduce("tied", ends, ReduceOp::sum, of_last, "pp", "add up tied tables");
  }
}

View UpdateWriter::own_gradients(const StepUnit& unit) {
  const ShardedUnit& u = unit.sharded;
  PlanBuilder& builder = writer_.builder();
  if (u.ranks.size() == 1) return flat_view(whole_gradients(unit), 0, u.pieces * u.numel);
  const std::string name = str("gradients/", u.name);
  if (!u.resident_sums) {
    return flat_view(builder.inout(name, u.gradient_dtype, u.num_owned()), 0, u.num_owned());
  }
  // Where parameters are whole all pieces are one here: their shards are never needed one by one.
  const std::int64_t shard = u.num_owned();
  // What lasts until the updates takes no memory beside the whole gradients.
  if (context_.reduces_before_updates())
    return flat_view(whole_gradients(unit), index_of(context_.self, u.ranks) * shard, shard);
  return flat_view(builder.temporary(name, u.gradient_dtype, shard), 0, shard);
}

void UpdateWriter::scatter(const StepUnit& unit, std::int64_t begin, std::int64_t replicated,
                           std::int64_t padded, const View& own, Advance wholes, Advance shards) {
  const ShardedUnit& u = unit.sharded;
  PlanBuilder& builder = writer_.builder();
  const StreamId stream = builder.stream("fsdp_reduce");
  const BufferId whole = whole_gradients(unit);
  if (replicated > 0)
    builder.add(stream,
                Copy{flat_view(whole, begin, replicated, wholes),
                     flat_view(own.buffer, own.offset, replicated, shards)},
                "gradients of small tensors");
  builder.add(stream,
              ReduceScatter{builder.group(u.group + "_reduce", u.ranks), ReduceOp::sum,
                            flat_view(whole, begin + replicated, padded, wholes),
                            flat_view(own.buffer, own.offset + replicated, padded / u.num_ranks(), shards)},
              "reduce gradients");
}

View UpdateWriter::reduced_gradients(const StepUnit& unit) {
  const ShardedUnit& u = unit.sharded;
  const View gradients = own_gradients(unit);
  if (u.resident_sums && u.ranks.size() > 1) {
    if (u.shares_all_pieces()) {
      scatter(unit, 0, 0, u.whole_gradients_numel(), gradients, {}, {});
    } else {
      // Those of sharded parameters are parts of each bucket.
      const std::int64_t full = u.pieces / u.bucket, rest = u.pieces % u.bucket,
                         slot = u.slot_numel(u.bucket), owned = u.owned_numel(u.bucket);
      const auto bucket = [&](std::int64_t first, std::int64_t count, bool repeats) {
        const View own = flat_view(gradients.buffer, gradients.offset + first * owned, u.owned_numel(count));
        scatter(unit, first * slot, count * u.replicated, u.padded_numel(count), own,
                repeats ? Advance{slot, 0, 0} : Advance{}, repeats ? Advance{owned, 0, 0} : Advance{});
      };
      if (full > 1) writer_.builder().begin_repeat(full);
      if (full > 0) bucket(0, u.bucket, full > 1);
      if (full > 1) writer_.builder().end_repeat();
      if (rest > 0) bucket(full, rest, false);
    }
  }
  add_up_small(unit, gradients);
  writer_.all_reduce(unit.replica_group, u.replicas, ReduceOp::sum, gradients, "replicas", "add up replicas");
  return gradients;
}

std::vector<UpdateWriter::Copied> UpdateWriter::copied(const StepUnit& unit) const {
  std::vector<Copied> all;
  const auto add = [&](const Weight& weight, std::int64_t copies) {
    if (weight.numel() > 0 && copies > 1) all.push_back({weight.begin, weight.end(), copies});
  };
  const std::int64_t tp = context_.layout.tp;
  for (const LayerParts parts : kLayerParts) {
    if (&unit != &units_.layers[parts]) continue;
    const LayerWeights& layer = context_.layer[parts];
    for (const Weight& replicated : layer.replicated) add(replicated, tp);
    if (context_.model.kv_heads >= tp || parts.mixer != Mixer::attention || context_.model.latent) continue;
    const std::int64_t q_width = context_.sizes.q_width, kv_width = context_.sizes.kv_width;
    const auto sharing =
        static_cast<std::int64_t>(context_.groups.tp_group_of_kv_head(context_.model.kv_heads).size());
    add(layer.qkv.part(q_width, 2 * kv_width), sharing);
    if (context_.model.qkv_bias) add({layer.qkv_bias.begin + q_width, 1, 2 * kv_width}, sharing);
    if (context_.model.qk_norm_of_all_heads) add(layer.k_norm, sharing);
  }
  // Tables of the first and the last stage.
  const std::int64_t ends = context_.copies_table() ? 2 : 1;
  if (&unit == &units_.embedding) add(context_.embedding, ends);
  if (&unit == &units_.prediction) add({0, 1, context_.prediction.numel}, tp);
  if (&unit == &units_.head) {
    add(context_.head.norm, tp);
    if (!context_.has_embedding()) add(context_.head.table, ends);
  }
  std::sort(all.begin(), all.end(), [](const Copied& a, const Copied& b) { return a.begin < b.begin; });
  return all;
}

void UpdateWriter::add_to_norm(const StepUnit& unit, const View& gradients, std::vector<View>& views,
                               std::vector<std::int64_t>& copies) const {
  const ShardedUnit& u = unit.sharded;
  const std::vector<Copied> copied = this->copied(unit);
  const std::int64_t shards = copies_among_norm_ranks(unit);
  if (copied.empty() && u.replicated == 0) {
    views.push_back(gradients), copies.push_back(shards);
    return;
  }
  const UnitTensors own{u, index_of(context_.self, u.ranks), {}};
  // The rank's elements of each piece alike, or one stretch behind the other.
  const bool alike = u.bucket == 1 && !u.shares_all_pieces() && u.pieces > 1;
  const std::int64_t end = alike ? u.owned_numel() : own.num_owned();
  for (std::int64_t at = 0; at < end;) {
    const UnitTensors::Element element = own.owned(at);
    if (element.piece >= u.pieces) break;  // padding behind all pieces
    const std::int64_t count = own.num_following(at), last = std::min(u.numel, element.at + count);
    // What several ranks have although the unit is sharded counts as often.
    const std::int64_t times = shards * (element.at < u.replicated ? u.num_ranks() : 1);
    const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t copies_of_it) {
      from = std::max(from, element.at), to = std::min(to, last);
      if (from >= to) return;
      const std::int64_t offset = gradients.offset + at + from - element.at;
      views.push_back(alike ? View{gradients.buffer, offset, {u.pieces, to - from}, {u.owned_numel(), 1}, {}}
                            : flat_view(gradients.buffer, offset, to - from));
      copies.push_back(copies_of_it * times);
    };
    std::int64_t next = 0;
    for (const Copied& part : copied) {
      add(next, part.begin, 1);
      add(part.begin, part.end, part.copies);
      next = part.end;
    }
    add(next, u.numel, 1);
    at += count;
  }
}

std::vector<Rank> UpdateWriter::norm_ranks() const {
  const ParallelLayout& layout = context_.layout;
  // Where parameters are sharded over all of dp_shard x cp, so are experts, with their ep groups.
  const bool elsewhere = layout.ep > 1 && context_.model.has(Mlp::experts) &&
                         layout.sharding_size() != layout.dp_shard * layout.cp;
  return elsewhere ? context_.groups.replica_group() : units_.sharing;
}

std::int64_t UpdateWriter::copies_among_norm_ranks(const StepUnit& unit) const {
  const bool split = &unit == &units_.experts && context_.layout.ep > 1;
  const std::int64_t holders = unit.sharded.num_ranks() * (split ? context_.layout.ep : 1);
  return static_cast<std::int64_t>(norm_ranks().size()) / holders;
}

// Over all that hold other elements: shards, experts, columns of tp ranks, stages. What several of them hold
// alike counts once. Of several stages on a rank each adds its own gradients, and the last one adds up over
// the ranks.
void UpdateWriter::take_norm(const std::vector<const StepUnit*>& units, const std::vector<View>& gradients) {
  PlanBuilder& builder = writer_.builder();
  const int pp = context_.layout.pp, stage = context_.stage, stages = pp * context_.layout.virtual_stages;
  const bool first = stage < pp, last = stage >= stages - pp;
  norm_ = flat_view(
      first ? builder.output("working/norm", DType::f32, 1) : builder.inout("working/norm", DType::f32, 1), 0,
      1);
  const View own = first ? norm_ : writer_.working("norm of the stage", DType::f32, 1).flat(0, 1);
  std::vector<View> views;
  SquaredNormRule rule;
  for (std::size_t i = 0; i < units.size(); ++i) add_to_norm(*units[i], gradients[i], views, rule.copies);
  writer_.kernel({RowOperation::squared_norm, std::move(views), {own}, {}, std::move(rule)}, "squared norm");
  if (!first) writer_.accumulate(own, norm_, "norm of the stages before");
  if (!last) return;
  const auto add_up = [&](const char* name, const std::vector<Rank>& ranks) {
    writer_.all_reduce(name, ranks, ReduceOp::sum, norm_, "norm", str("norm over ", name));
  };
  add_up("norm_shards", norm_ranks());
  add_up("norm_tp", context_.groups.tp_group());
  add_up("norm_pp", context_.groups.pp_group());
}

void UpdateWriter::norm_to_host() {
  host_norm_ = flat_view(writer_.builder().output("host/norm", DType::f32, 1), 0, 1);
  schedule_ = flat_view(writer_.builder().input("host/schedule", DType::f32, 2), 0, 2);
  writer_.builder().add(writer_.builder().stream("to_host"), Copy{norm_, host_norm_}, "norm to the host");
}

void UpdateWriter::optimize(const StepUnit& unit, const View& gradients) {
  const ShardedUnit& u = unit.sharded;
  const Optimizer& optimizer = context_.workload.optimizer;
  const std::int64_t numel = gradients.numel();
  PlanBuilder& builder = writer_.builder();
  const bool whole = u.ranks.size() == 1, gathers = u.resident && !whole;
  // What computes is written here, unless it is the f32 parameters, or cast from them when they are gathered.
  View computes;
  if (gathers) {
    computes = flat_view(builder.temporary(str("unsharded/", u.name, " shard"), u.dtype, numel), 0, numel);
  } else if (optimizer.offload || (whole && u.dtype != DType::f32)) {
    computes = flat_view(builder.output(str("parameters/", u.name), u.dtype, numel), 0, numel);
  }
  if (optimizer.offload) {
    optimize_on_host(unit, gradients, computes);
  } else {
    if (schedule_.buffer < 0) schedule_ = flat_view(builder.input("working/schedule", DType::f32, 2), 0, 2);
    RowKernel kernel{
        RowOperation::optimizer, {gradients, norm_, schedule_}, {}, {}, optimizer_rule(optimizer)};
    const char* term = whole && u.dtype != DType::f32 ? "master/" : "parameters/";
    kernel.updates.push_back(flat_view(builder.inout(str(term, u.name), DType::f32, numel), 0, numel));
    if (optimizer.states > 0) {
      const std::int64_t states = optimizer.states * numel;
      kernel.updates.push_back(
          flat_view(builder.inout(str("optimizer/", u.name), optimizer.state_dtype, states), 0, states));
    }
    if (computes.buffer >= 0) kernel.writes.push_back(computes);
    writer_.kernel(std::move(kernel), str("optimizer, ", u.name));
  }
  if (gathers) gather(unit, computes);
}

void UpdateWriter::optimize_on_host(const StepUnit& unit, const View& gradients, const View& computes) {
  // Chosen: the copies of computed pieces run beside the optimizer of the next ones, so that what lasts
  // beyond the longer of both is one piece of the other: a sixteenth. More pieces would gain little and make
  // more steps.
  constexpr std::int64_t kPieces = 16;
  const ShardedUnit& u = unit.sharded;
  const Optimizer& optimizer = context_.workload.optimizer;
  PlanBuilder& builder = writer_.builder();
  const std::int64_t numel = gradients.numel();
  const auto name = [&](const char* what) { return str("host/", what, "/", u.name); };
  HostUnit host;
  if (u.sends_gradients) {
    host.gradients = builder.input(name("gradients"), u.gradient_dtype, numel);
  } else {
    host.gradients = builder.output(name("gradients"), u.gradient_dtype, numel);
    builder.add(builder.stream("to_host"), Copy{gradients, flat_view(host.gradients, 0, numel)},
                "gradients to the host");
  }
  host.master = builder.inout(name("master"), DType::f32, numel);
  if (optimizer.states > 0)
    host.states = builder.inout(name("optimizer"), optimizer.state_dtype, optimizer.states * numel);
  host.parameters = builder.output(name("parameters"), u.dtype, numel);
  const std::int64_t each = ceil_div(numel, kPieces), pieces = numel / each;
  if (pieces > 1) builder.begin_repeat(pieces);
  optimize_piece_on_host(host, computes, 0, pieces > 1 ? each : 0, each);
  if (pieces > 1) builder.end_repeat();
  if (numel > pieces * each) optimize_piece_on_host(host, computes, pieces * each, 0, numel - pieces * each);
}

void UpdateWriter::optimize_piece_on_host(const HostUnit& host, const View& computes, std::int64_t first,
                                          std::int64_t step, std::int64_t count) {
  PlanBuilder& builder = writer_.builder();
  const std::int64_t numel = computes.numel();
  const Advance advance = step == 0 ? Advance{} : Advance{step, 0, 0};
  const auto piece = [&](BufferId buffer) { return flat_view(buffer, first, count, advance); };
  RowKernel kernel{RowOperation::optimizer,
                   {piece(host.gradients), host_norm_, schedule_},
                   {piece(host.parameters)},
                   {piece(host.master)},
                   optimizer_rule(context_.workload.optimizer)};
  if (host.states >= 0) {
    const int states = context_.workload.optimizer.states;
    kernel.updates.push_back({host.states, first, {states, count}, {numel, 1}, advance});
  }
  builder.add(builder.stream("host"), std::move(kernel), "optimizer on the host");
  View arrived = computes;
  arrived.offset += first, arrived.shape = {count}, arrived.strides = {1}, arrived.advance = advance;
  builder.add(builder.stream("from_host"), Copy{piece(host.parameters), arrived}, "parameters from the host");
}

// AdamW without memory moves by the rate times the sign of the gradient, which is a load less the mean load:
// every token of the step chooses as many experts.
void UpdateWriter::move_corrections() {
  const std::int64_t layers = count_of(context_.layers_with, Mlp::experts);
  if (layers == 0 || !context_.model.experts->moves_corrections) return;
  const Experts& experts = *context_.model.experts;
  const std::int64_t numel = layers * experts.count;
  PlanBuilder& builder = writer_.builder();
  const View loads = flat_view(builder.inout(std::string(kLoadsBuffer), DType::f32, numel), 0, numel),
             correction =
                 flat_view(builder.inout(std::string(kScoreCorrectionBuffer), DType::f32, numel), 0, numel),
             schedule = flat_view(builder.input(std::string(kCorrectionSchedule), DType::f32, 2), 0, 2);
  writer_.all_reduce("replicas_whole", context_.groups.replicas(), ReduceOp::sum, loads, "replicas",
                     "add up loads");
  const auto constant = [&](const char* name, std::int64_t count, double value) {
    const View view = writer_.working(name, DType::f32, count).flat(0, count);
    writer_.fill(view, value, name);
    return view;
  };
  const auto mean =
      static_cast<double>(context_.workload.tokens() * experts.top_k) / static_cast<double>(experts.count);
  writer_.accumulate(constant("mean load, below 0", numel, -mean), loads, "loads less their mean");
  OptimizerRule rule;
  rule.beta1 = rule.beta2 = rule.decay = rule.max_norm = 0;
  writer_.kernel({RowOperation::optimizer,
                  {loads, constant("no norm", 1, 0), schedule},
                  {},
                  {correction, constant("no states", 2 * numel, 0)},
                  rule},
                 "move corrections");
}

// Whole pieces that were scattered one by one are gathered one by one.
void UpdateWriter::gather(const StepUnit& unit, const View& shard) {
  const ShardedUnit& u = unit.sharded;
  PlanBuilder& builder = writer_.builder();
  const BufferId all = builder.output(str("unsharded/", u.name), u.dtype, u.whole_numel());
  const GroupId group = builder.group(u.group, u.ranks);
  const std::int64_t pieces = u.resident_sums ? 1 : u.pieces, each = shard.numel() / pieces;
  const Advance shards = pieces > 1 ? Advance{each, 0, 0} : Advance{},
                wholes = pieces > 1 ? Advance{u.whole_numel() / pieces, 0, 0} : Advance{};
  if (pieces > 1) builder.begin_repeat(pieces);
  builder.add(builder.stream("fsdp"),
              AllGather{group, flat_view(shard.buffer, shard.offset, each, shards),
                        flat_view(all, 0, u.whole_numel() / pieces, wholes)},
              "gather parameters");
  if (pieces > 1) builder.end_repeat();
}

}  // namespace cp
