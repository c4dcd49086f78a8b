#include "shared/fully_shard/hsdp_param.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/redistribute/lower.h"

namespace cp {
namespace {

Layout with_dtype(Layout layout, DType dtype) {
  layout.dtype = dtype;
  return layout;
}

// The layout with another placement on these axes. Axes that begin to shard come last in the order of their
// dimension, as given.
Layout placed(const Layout& layout, const std::vector<int>& axes, const Placement& placement, DType dtype) {
  std::vector<Placement> placements = layout.placements;
  std::vector<std::vector<int>> order = layout.shard_axes;
  for (const int axis : axes) {
    placements[idx(axis)] = placement;
    for (std::vector<int>& sharding : order) std::erase(sharding, axis);
  }
  if (const auto* shard = std::get_if<Shard>(&placement)) {
    const int rank = static_cast<int>(layout.shape.size());
    const int dim = shard->dim < 0 ? shard->dim + rank : shard->dim;
    if (dim >= 0 && dim < rank) order[idx(dim)].insert(order[idx(dim)].end(), axes.begin(), axes.end());
  }
  return make_layout(layout.mesh, std::move(placements), layout.shape, dtype, std::move(order));
}

void require_converts(DType from, DType to, std::string_view what) {
  if (from == to || (is_floating(from) && is_floating(to))) return;
  throw InvalidInput(str(what, "=", name(to), " for a parameter of ", name(from),
                         ": only floating types are converted; leave it out"));
}

std::int64_t numel_of(const Shape& shape) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  return numel;
}

Digest digest_of(std::string_view what, const Layout& from, const Layout& to, bool variant) {
  Hasher hasher;
  hasher.add(what);
  hash(hasher, from);
  hash(hasher, to);
  return hasher.add(variant).digest();
}

}  // namespace

HsdpParam::HsdpParam(const Layout& param, HsdpOptions options)
    : param_(param),
      options_(std::move(options)),
      sharded_(param),
      unsharded_(param),
      gradient_(param),
      accumulated_(param),
      scattered_(param) {
  if (options_.reduce != ReduceOp::avg && options_.reduce != ReduceOp::sum) {
    throw InvalidInput(
        str("reduce=", name(options_.reduce), ": gradients are averaged or added up; use avg or sum"));
  }
  if (is_partial(param_)) {
    throw InvalidInput(str("a parameter that is ", placements_to_string(param_),
                           " has no values to compute with; reduce it first"));
  }
  require_converts(param_.dtype, options_.param_dtype.value_or(param_.dtype), "param_dtype");
  require_converts(param_.dtype, options_.reduce_dtype.value_or(param_.dtype), "reduce_dtype");
  std::vector<int> taken;
  shard_axes_ = axes_of(options_.shard, taken);
  std::vector<int> replicate = axes_of(options_.replicate, taken);
  const std::vector<int> partial = axes_of(options_.partial, taken);
  if (numel_of(param_.shape) < options_.min_numel) {
    replicate.insert(replicate.end(), shard_axes_.begin(), shard_axes_.end());
    shard_axes_.clear();
  }
  derive_layouts(replicate, partial);
}

// Without axes of one rank: nothing is split, and nothing reduced, over them.
std::vector<int> HsdpParam::axes_of(const std::vector<std::string>& names, std::vector<int>& taken) const {
  const Mesh& mesh = param_.mesh;
  std::vector<int> axes;
  for (const std::string& name : names) {
    for (const int axis : mesh.axes_of(name)) {
      if (std::find(taken.begin(), taken.end(), axis) != taken.end()) {
        throw InvalidInput(str("the axis ", mesh.axes()[idx(axis)].name,
                               " comes twice; name each once, as shard, replicate or partial"));
      }
      taken.push_back(axis);
      if (!std::holds_alternative<Replicate>(param_.placements[idx(axis)])) {
        throw InvalidInput(str("the parameter is ", placements_to_string(param_), " over ", mesh.to_string(),
                               ": ", mesh.axes()[idx(axis)].name,
                               " splits it already, so its ranks hold no copies; use axes where it is R"));
      }
      if (mesh.axis_size(axis) > 1) axes.push_back(axis);
    }
  }
  return axes;
}

void HsdpParam::derive_layouts(const std::vector<int>& replicate, const std::vector<int>& partial) {
  const DType param_dtype = options_.param_dtype.value_or(param_.dtype);
  const DType reduce_dtype = options_.reduce_dtype.value_or(param_dtype);
  std::vector<int> data = shard_axes_;
  data.insert(data.end(), replicate.begin(), replicate.end());
  const Shard shard{options_.shard_dim, options_.split};

  sharded_ = shard_axes_.empty() ? param_ : placed(param_, shard_axes_, shard, param_.dtype);
  unsharded_ = with_dtype(param_, param_dtype);
  gradient_ = placed(placed(param_, data, Partial{options_.reduce}, param_dtype), partial,
                     Partial{ReduceOp::sum}, param_dtype);
  accumulated_ = with_dtype(gradient_, reduce_dtype);
  scattered_ = shard_axes_.empty() ? accumulated_ : placed(accumulated_, shard_axes_, shard, reduce_dtype);
  all_reduce_axes_ = partial_axes(scattered_);
}

// One for each reduction: only sums and sums, or means and means, are one operation.
void HsdpParam::append_all_reduces(Layout at, std::vector<Move>& moves) const {
  for (const ReduceOp op : {ReduceOp::avg, ReduceOp::sum}) {
    std::vector<int> axes;
    for (const int axis : all_reduce_axes_) {
      if (std::get<Partial>(scattered_.placements[idx(axis)]).op == op) axes.push_back(axis);
    }
    if (axes.empty()) continue;
    const Layout reduced = placed(at, axes, Replicate{}, at.dtype);
    moves.push_back({MoveKind::all_reduce, axes, at, reduced});
    at = reduced;
  }
}

Redistribution HsdpParam::unshard() const {
  std::vector<Move> moves;
  if (is_split()) moves.push_back({MoveKind::all_gather, shard_axes_, sharded_, unsharded_});
  return follow_moves(sharded_, unsharded_, moves);
}

Redistribution HsdpParam::reduction(const HsdpReduction& request) const {
  using Part = HsdpReduction::Part;
  const Layout& begin = request.accumulated ? accumulated_ : gradient_;
  std::vector<Move> moves;
  if (request.part != Part::all_reduce && is_split()) {
    moves.push_back({MoveKind::reduce_scatter, shard_axes_, begin, scattered_});
  }
  if (request.part != Part::scatter) append_all_reduces(scattered_, moves);
  RedistributeOptions options;
  options.travel_dtype = scattered_.dtype;
  return follow_moves(request.part == Part::all_reduce ? scattered_ : begin,
                      request.part == Part::scatter ? scattered_ : sharded_, moves, options);
}

Redistribution HsdpParam::normalization(const Layout& produced) const {
  const auto refuse = [&](const auto&... why) {
    throw InvalidInput(str("the gradient is ", placements_to_string(produced), " over ",
                           produced.mesh.to_string(), ", but this parameter's gradient is ",
                           placements_to_string(gradient_), " over ", gradient_.mesh.to_string(), ": ",
                           why...));
  };
  if (!(produced.mesh == gradient_.mesh))
    refuse("they lie on different meshes; use the mesh of the parameter");
  if (produced.shape != gradient_.shape)
    refuse("their shapes are ", join(produced.shape, "x"), " and ", join(gradient_.shape, "x"));
  for (std::size_t axis = 0; axis < gradient_.placements.size(); ++axis) {
    const bool of_data = std::holds_alternative<Partial>(gradient_.placements[axis]);
    if (of_data && produced.placements[axis] != gradient_.placements[axis])
      refuse("ranks along ", gradient_.mesh.axes()[axis].name,
             " have different data, so that the gradient must be partial there");
  }
  return plan_redistribution(produced, gradient_);
}

Plan HsdpParam::unshard_plan(Rank self, const Target& target) const {
  const Redistribution redistribution = unshard();
  PlanBuilder builder(self, target);
  const StreamId stream = builder.stream("fsdp");
  const BufferId shard = builder.input("shard", sharded_.dtype, local_numel(sharded_, self));
  const BufferId parameter = builder.output("parameter", unsharded_.dtype, local_numel(unsharded_, self));
  append_redistribution(builder, stream, self, redistribution, shard, parameter);
  return std::move(builder).build(redistribution.inputs);
}

Plan HsdpParam::normalize_plan(Rank self, const Layout& produced, const Target& target) const {
  const Redistribution redistribution = normalization(produced);
  PlanBuilder builder(self, target);
  const StreamId stream = builder.stream("fsdp");
  const BufferId source = builder.input("produced", produced.dtype, local_numel(produced, self));
  const BufferId gradient = builder.output("gradient", gradient_.dtype, local_numel(gradient_, self));
  append_redistribution(builder, stream, self, redistribution, source, gradient);
  return std::move(builder).build(redistribution.inputs);
}

Plan HsdpParam::accumulate_plan(Rank self, bool first, const Target& target) const {
  const std::int64_t numel = local_numel(gradient_, self);
  const DType from = gradient_.dtype, to = accumulated_.dtype;
  PlanBuilder builder(self, target);
  const StreamId stream = builder.stream("compute");
  const BufferId gradient = builder.input("gradient", from, numel);
  const BufferId sum =
      first ? builder.output("accumulated", to, numel) : builder.inout("accumulated", to, numel);
  const auto all = [&](BufferId buffer) { return flat_view(buffer, 0, numel); };
  if (numel > 0) {
    BufferId addend = gradient;
    if (from != to) {
      addend = first ? sum : builder.temporary("gradient cast", to, numel);
      builder.add(stream, Cast{all(gradient), all(addend)}, str("cast to ", name(to)));
    } else if (first) {
      builder.add(stream, Copy{all(gradient), all(sum)}, "first gradient");
    }
    if (!first) builder.add(stream, Accumulate{ReduceOp::sum, all(addend), all(sum)}, "accumulate");
  }
  return std::move(builder).build(digest_of("hsdp accumulate", gradient_, accumulated_, first));
}

Plan HsdpParam::reduce_plan(Rank self, const HsdpReduction& request, const Target& target) const {
  using Part = HsdpReduction::Part;
  const Redistribution redistribution = reduction(request);
  const Layout &from = redistribution.source, &to = redistribution.target;
  const char* in = request.part == Part::all_reduce ? "scattered"
                   : request.accumulated            ? "accumulated"
                                                    : "gradient";
  const char* out = request.part == Part::scatter ? "scattered" : "reduced";
  const std::int64_t numel = local_numel(to, self);
  PlanBuilder builder(self, target);
  const StreamId stream = builder.stream("fsdp");
  const BufferId source = builder.input(in, from.dtype, local_numel(from, self));
  if (!request.add) {
    const BufferId result = builder.output(out, to.dtype, numel);
    append_redistribution(builder, stream, self, redistribution, source, result);
    return std::move(builder).build(redistribution.inputs);
  }
  const BufferId sum = builder.inout(out, to.dtype, numel);
  const BufferId result = builder.temporary("addend", to.dtype, numel);
  append_redistribution(builder, stream, self, redistribution, source, result);
  if (numel > 0) {
    builder.add(stream, Accumulate{ReduceOp::sum, flat_view(result, 0, numel), flat_view(sum, 0, numel)},
                "add to the gradient");
  }
  return std::move(builder).build(digest_of("hsdp reduce and add", from, to, request.accumulated));
}

Layout replicated_layout(const Mesh& mesh, Shape shape, DType dtype) {
  return make_layout(mesh, std::vector<Placement>(idx(mesh.num_axes()), Replicate{}), std::move(shape),
                     dtype);
}

Layout unified_layout(const Mesh& data_parallel, const Layout& param, Rank member) {
  const std::array parts = {data_parallel, param.mesh};
  const int before = data_parallel.num_axes();
  std::vector<Placement> placements(idx(before), Replicate{});
  placements.insert(placements.end(), param.placements.begin(), param.placements.end());
  std::vector<std::vector<int>> order = param.shard_axes;
  for (std::vector<int>& axes : order) {
    for (int& axis : axes) axis += before;
  }
  return make_layout(Mesh::concatenate(parts, member), std::move(placements), param.shape, param.dtype,
                     std::move(order));
}

}  // namespace cp
