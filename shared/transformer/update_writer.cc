#include "shared/transformer/update_writer.h"

#include "shared/base/text.h"

namespace cp {

// ---- units ----

StepUnits::StepUnits(const StepContext& context) {
  const ParallelLayout& layout = context.layout;
  const Workload& workload = context.workload;
  const auto unit = [&](std::string name, std::int64_t numel, std::int64_t pieces, bool of_experts) {
    StepUnit made;
    ShardedUnit& sharded = made.sharded;
    sharded.name = std::move(name), sharded.numel = numel, sharded.pieces = pieces;
    const bool split = of_experts && layout.ep > 1;
    sharded.group = split ? "fsdp_experts" : "fsdp";
    sharded.ranks = split ? context.groups.expert_shard_group() : context.groups.shard_group();
    sharded.dtype = workload.dtype, sharded.gradient_dtype = workload.gradient_dtype;
    sharded.shard_dtype = workload.optimizer.offload ? workload.dtype : DType::f32;
    if (!context.training) sharded.resident = true;
    if (context.training && layout.pp > 1 && sharded.ranks.size() > 1) {
      sharded.resident = true;
      sharded.resident_parameters = "unsharded", sharded.resident_gradients = "unsharded/gradients";
    }
    made.replicas = split ? context.groups.expert_replicas() : context.groups.replicas();
    made.replica_group = split ? "replicas_experts" : "replicas";
    return made;
  };
  const bool table = context.first_stage || (context.last_stage && layout.pp == 1);
  layers = unit("layers", context.layer.numel, context.layers, false);
  experts = unit("experts", context.model.experts ? context.experts.numel : 0, context.layers, true);
  embedding = unit("embedding", table ? context.embedding.numel() : 0, 1, false);
  head = unit("head", context.last_stage ? context.head.numel : 0, 1, false);
}

std::vector<const StepUnit*> StepUnits::present() const {
  std::vector<const StepUnit*> units;
  for (const StepUnit* unit : {&layers, &experts, &embedding, &head}) {
    if (unit->sharded.numel > 0) units.push_back(unit);
  }
  return units;
}

// ---- update ----

void UpdateWriter::write() {
  const std::vector<const StepUnit*> units = units_.present();
  add_up_replicated();
  add_up_tied_tables();
  std::vector<View> gradients;
  for (const StepUnit* unit : units) gradients.push_back(reduced_gradients(*unit));
  take_norm(gradients);
  for (std::size_t i = 0; i < units.size(); ++i) optimize(*units[i], gradients[i]);
}

BufferId UpdateWriter::whole_gradients(const StepUnit& unit) {
  for (const auto& [known, buffer] : whole_) {
    if (known == &unit) return buffer;
  }
  const ShardedUnit& u = unit.sharded;
  const BufferId buffer = writer_.builder().inout(
      str(u.resident ? u.resident_gradients : "gradients", "/", u.name), u.gradient_dtype, u.whole_numel());
  whole_.emplace_back(&unit, buffer);
  return buffer;
}

void UpdateWriter::add_up_replicated() {
  if (!units_.layers.sharded.adds_gradients() || context_.layout.tp == 1) return;
  const LayerWeights& layer = context_.layer;
  add_up_pieces("tp", context_.groups.tp_group(), 0, layer.replicated, "norms");
  if (context_.last_stage) {
    writer_.all_reduce("tp", context_.groups.tp_group(), ReduceOp::sum,
                       context_.head.norm.flat({whole_gradients(units_.head), 0, {}}), "tp",
                       "add up d final norm");
  }
  if (context_.model.kv_heads >= context_.layout.tp) return;
  const std::vector<Rank> sharing = context_.groups.tp_group_of_kv_head(context_.model.kv_heads);
  const std::int64_t q_width = context_.sizes.q_width, kv_width = context_.sizes.kv_width;
  const Weight kv = layer.qkv.part(q_width, 2 * kv_width);
  add_up_pieces("tp_kv", sharing, kv.begin, kv.numel(), "k, v weights");
  if (context_.model.qkv_bias) {
    add_up_pieces("tp_kv", sharing, layer.qkv_bias.begin + q_width, 2 * kv_width, "k, v biases");
  }
}

void UpdateWriter::add_up_pieces(const std::string& group, const std::vector<Rank>& ranks, std::int64_t begin,
                                 std::int64_t numel, const std::string& label) {
  const ShardedUnit& layers = units_.layers.sharded;
  const View pieces{whole_gradients(units_.layers), begin, {layers.pieces, numel}, {layers.numel, 1}, {}};
  const View packed = writer_.working(label, layers.gradient_dtype, pieces.numel()).dense(0, pieces.shape);
  writer_.copy(pieces, packed, str("pack d ", label));
  writer_.all_reduce(group, ranks, ReduceOp::sum, packed, "tp", str("add up d ", label));
  writer_.copy(packed, pieces, str("unpack d ", label));
}

void UpdateWriter::add_up_tied_tables() {
  if (!context_.model.tied_embeddings || context_.layout.pp == 1) return;
  const std::vector<Rank> ends = {context_.groups.on_pipeline_rank(0),
                                  context_.groups.on_pipeline_rank(context_.layout.pp - 1)};
  const std::int64_t numel = context_.embedding.numel();
  if (context_.first_stage) {
    writer_.all_reduce("tied", ends, ReduceOp::sum, flat_view(whole_gradients(units_.embedding), 0, numel),
                       "pp", "add up tied tables");
  }
  if (context_.last_stage) {
    writer_.all_reduce("tied", ends, ReduceOp::sum,
                       flat_view(whole_gradients(units_.head), context_.head.table.begin, numel), "pp",
                       "add up tied tables");
  }
}

View UpdateWriter::reduced_gradients(const StepUnit& unit) {
  const ShardedUnit& u = unit.sharded;
  View gradients;
  if (u.ranks.size() == 1) {
    gradients = flat_view(whole_gradients(unit), 0, u.pieces * u.numel);
  } else if (!u.resident) {
    const std::int64_t numel = u.pieces * u.shard_numel();
    gradients =
        flat_view(writer_.builder().inout(str("gradients/", u.name), u.gradient_dtype, numel), 0, numel);
  } else {
    // All pieces are one here: their shards are never needed one by one.
    const std::int64_t all = u.whole_numel(), shard = all / u.num_ranks();
    gradients =
        flat_view(writer_.builder().temporary(str("gradients/", u.name), u.gradient_dtype, shard), 0, shard);
    const GroupId group = writer_.builder().group(u.group + "_reduce", u.ranks);
    writer_.builder().add(
        writer_.builder().stream("fsdp_reduce"),
        ReduceScatter{group, ReduceOp::sum, flat_view(whole_gradients(unit), 0, all), gradients},
        "reduce gradients");
  }
  writer_.all_reduce(unit.replica_group, unit.replicas, ReduceOp::sum, gradients, "replicas",
                     "add up replicas");
  return gradients;
}

// Over all that hold other elements: shards, experts, columns of tp ranks, stages.
void UpdateWriter::take_norm(const std::vector<View>& gradients) {
  norm_ = writer_.working("norm", DType::f32, 1).flat(0, 1);
  writer_.kernel({RowOperation::squared_norm, gradients, {norm_}, {}}, "squared norm");
  const auto add_up = [&](const char* name, const std::vector<Rank>& ranks) {
    writer_.all_reduce(name, ranks, ReduceOp::sum, norm_, "norm", str("norm over ", name));
  };
  add_up("norm_shards", context_.groups.shard_group());
  add_up("norm_tp", context_.groups.tp_group());
  add_up("norm_pp", context_.groups.pp_group());
}

void UpdateWriter::optimize(const StepUnit& unit, const View& gradients) {
  const ShardedUnit& u = unit.sharded;
  const Optimizer& optimizer = context_.workload.optimizer;
  const std::int64_t numel = gradients.numel();
  PlanBuilder& builder = writer_.builder();
  const bool whole = u.ranks.size() == 1, gathers = u.resident && !whole;
  RowKernel kernel{RowOperation::optimizer, {gradients, norm_}, {}, {}};
  if (!optimizer.offload) {
    const char* term = whole && u.dtype != DType::f32 ? "master/" : "parameters/";
    kernel.updates.push_back(flat_view(builder.inout(str(term, u.name), DType::f32, numel), 0, numel));
    if (optimizer.states > 0) {
      const std::int64_t states = optimizer.states * numel;
      kernel.updates.push_back(
          flat_view(builder.inout(str("optimizer/", u.name), optimizer.state_dtype, states), 0, states));
    }
  }
  // What computes is written here, unless it is the f32 parameters, or cast from them when they are gathered.
  View computes;
  if (gathers) {
    computes = flat_view(builder.temporary(str("unsharded/", u.name, " shard"), u.dtype, numel), 0, numel);
  } else if (optimizer.offload || (whole && u.dtype != DType::f32)) {
    computes = flat_view(builder.output(str("parameters/", u.name), u.dtype, numel), 0, numel);
  }
  if (computes.buffer >= 0) kernel.writes.push_back(computes);
  writer_.kernel(std::move(kernel), str("optimizer, ", u.name));
  if (!gathers) return;
  const BufferId all = builder.output(str("unsharded/", u.name), u.dtype, u.whole_numel());
  builder.add(builder.stream("fsdp"),
              AllGather{builder.group(u.group, u.ranks), computes, flat_view(all, 0, u.whole_numel())},
              "gather parameters");
}

}  // namespace cp
