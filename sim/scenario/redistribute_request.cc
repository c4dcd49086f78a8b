#include "sim/scenario/redistribute_request.h"

#include <algorithm>
#include <vector>

#include <google/protobuf/generated_enum_reflection.h>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/redistribute_times.h"
#include "sim/scenario/cost_fields.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/read_values.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

void require(const std::string& value, std::string_view flag, std::string_view example) {
  if (value.empty()) throw InvalidInput(str(flag, " is missing; add, for example, ", flag, " ", example));
}

void require_axes(const CostModel& cost, const Mesh& source, const Mesh& target) {
  std::vector<std::string> known;
  for (const Mesh* mesh : {&source, &target}) {
    for (const MeshAxis& axis : mesh->axes()) {
      if (std::find(known.begin(), known.end(), axis.name) == known.end()) known.push_back(axis.name);
    }
  }
  for (const auto& [axis, gbps] : cost.axis_gbps) {
    if (std::find(known.begin(), known.end(), axis) != known.end()) continue;
    const std::string near = nearest(axis, known);
    throw InvalidInput(str("--axis-gbps ", axis, "=", gbps, ": no mesh has an axis ", axis, "; use ",
                           near.empty() ? join(known, " or ") : near));
  }
}

template <class Enum>
Enum parse_enum(std::string_view flag, std::string_view text) {
  const auto* type = google::protobuf::GetEnumDescriptor<Enum>();
  if (const auto* value = type->FindValueByName(std::string(text))) return static_cast<Enum>(value->number());
  std::vector<std::string> known;
  known.reserve(static_cast<std::size_t>(type->value_count()));
  for (int i = 0; i < type->value_count(); ++i) known.push_back(type->value(i)->name());
  throw InvalidInput(str(flag, " ", text, " is unknown; use ", join(known, " or ")));
}

std::optional<GradientRule> gradient_rule(proto::Redistribute::Gradient gradient) {
  switch (gradient) {
    case proto::Redistribute::adjoint:
      return GradientRule::adjoint;
    case proto::Redistribute::replicated:
      return GradientRule::replicated;
    default:
      return std::nullopt;
  }
}

GradScale grad_scale(proto::Redistribute::GradientScale scale) {
  switch (scale) {
    case proto::Redistribute::up:
      return GradScale::up;
    case proto::Redistribute::down:
      return GradScale::down;
    default:
      return GradScale::none;
  }
}

void add_gradient(const proto::Redistribute& job, RedistributeRequest& request) {
  request.gradient = gradient_rule(job.gradient());
  const std::string& word = proto::Redistribute::GradientScale_Name(job.gradient_scale());
  if (!request.gradient && job.gradient_scale() != proto::Redistribute::none) {
    throw InvalidInput(
        str("--gradient-scale ", word,
            " scales a gradient, and none is asked for; add --gradient replicated (or adjoint)"));
  }
  request.gradient_scale = value_of("--gradient-scale", word, [&] {
    return grad_scale_factor(grad_scale(job.gradient_scale()), request.source, request.target);
  });
}

}  // namespace

namespace {

// Takes the cluster on which the ranks of both meshes are, and what moves cost there.
void add_cluster(const proto::Redistribute& job, RedistributeRequest& request) {
  if (job.cluster().empty()) {
    if (job.nodes() != 0)
      throw InvalidInput(
          str("--nodes ", job.nodes(), " needs a cluster; add, for example, --cluster dgx-h100"));
    return;
  }
  if (job.has_cost()) {
    throw InvalidInput(
        str("--cluster ", job.cluster(),
            " says what moves cost, and so do the flags of the cost model; leave one of the two "
            "out, or write a cluster file with like: \"",
            job.cluster(), "\" and the figures that differ"));
  }
  Rank last = 0;
  for (const Mesh* mesh : {&request.source.mesh, &request.target.mesh}) {
    for (const Rank rank : mesh->ranks()) last = std::max(last, rank);
  }
  const int of_node = find_cluster(job.cluster(), 1).node.gpus, needed = last / of_node + 1;
  if (job.nodes() != 0 && job.nodes() < needed) {
    throw InvalidInput(str("--nodes ", job.nodes(), " of ", of_node, " GPUs have no GPU for rank ", last,
                           "; use --nodes ", needed));
  }
  request.cluster = find_cluster(job.cluster(), job.nodes() != 0 ? job.nodes() : needed);
  request.options.cost = cost_model_of(*request.cluster);
}

}  // namespace

RedistributeRequest make_request(const proto::Redistribute& given, const Target& device) {
  const proto::Redistribute job = with_mesh(given);
  require(job.mesh(), "--mesh", "dp=2,cp=4");
  require(job.shape(), "--shape", "1024x1024x256");
  require(job.from(), "--from", "'S(0),R'");
  require(job.to(), "--to", "'R,S(1)'");
  const FieldPath path("redistribute");
  const DType dtype = job.dtype() == 0 ? DType::f32 : from_proto(job.dtype(), {path, "dtype"});
  const Mesh mesh = value_of("--mesh", job.mesh(), [&] { return Mesh::parse(job.mesh()); });
  const Mesh to_mesh = job.to_mesh().empty()
                           ? mesh
                           : value_of("--to-mesh", job.to_mesh(), [&] { return Mesh::parse(job.to_mesh()); });
  const Shape shape = value_of("--shape", job.shape(), [&] { return parse_shape(job.shape()); });
  const auto layout = [&](std::string_view flag, const std::string& text, const Mesh& on) {
    return value_of(flag, text, [&] { return parse_layout(text, on, shape, dtype); });
  };
  RedistributeRequest request{.source = layout("--from", job.from(), mesh),
                              .target = layout("--to", job.to(), to_mesh),
                              .options = {},
                              .seed = job.seed(),
                              .device_target = target_of(job.target(), device)};
  request.options.cost = cost_model(job.cost());
  add_cluster(job, request);
  require_axes(request.options.cost, mesh, to_mesh);
  request.options.objective =
      job.objective() == proto::Redistribute::bytes ? Objective::bytes : Objective::time;
  if (job.has_max_memory_factor()) request.options.max_memory_factor = job.max_memory_factor();
  if (job.travel_dtype() != 0)
    request.options.travel_dtype = from_proto(job.travel_dtype(), {path, "travel_dtype"});
  if (job.schedule() == proto::Redistribute::baton) request.schedule = Schedule::baton;
  add_gradient(job, request);
  return request;
}

RedistributeOptions planning_options(const RedistributeRequest& request) {
  RedistributeOptions options = request.options;
  if (!request.gradient) return options;
  if (!options.travel_dtype) options.travel_dtype = request.target.dtype;
  return options;
}

Gradient plan_request(const RedistributeRequest& request) {
  if (!request.gradient) return {plan_redistribution(request.source, request.target, request.options), 1};
  GradientOptions options;
  options.redistribute = request.options;
  options.rule = *request.gradient;
  options.backward_dtype = request.options.travel_dtype;
  options.scale = request.gradient_scale;
  return plan_gradient(request.source, request.target, options);
}

Shape parse_shape(std::string_view text) {
  if (text == "scalar") return {};
  Shape shape = parse_ints(text, 'x', "size");
  for (const std::int64_t size : shape) {
    if (size < 0) throw InvalidInput(str("size ", size, " is negative; write, for example, 1024x1024x256"));
  }
  return shape;
}

proto::DType parse_proto_dtype(std::string_view flag, std::string_view text) {
  return to_proto(value_of(flag, text, [&] { return parse_dtype(text); }));
}

proto::Redistribute::Objective parse_objective(std::string_view text) {
  return parse_enum<proto::Redistribute::Objective>("--objective", text);
}

proto::Redistribute::Schedule parse_schedule(std::string_view text) {
  return parse_enum<proto::Redistribute::Schedule>("--schedule", text);
}

proto::Redistribute::Gradient parse_gradient(std::string_view text) {
  return parse_enum<proto::Redistribute::Gradient>("--gradient", text);
}

proto::Redistribute::GradientScale parse_gradient_scale(std::string_view text) {
  return parse_enum<proto::Redistribute::GradientScale>("--gradient-scale", text);
}

}  // namespace cp::sim
