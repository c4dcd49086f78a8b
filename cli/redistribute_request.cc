#include "cli/redistribute_request.h"

#include <algorithm>
#include <vector>

#include <google/protobuf/generated_enum_reflection.h>

#include "cli/cost_flags.h"
#include "cli/flags.h"
#include "cli/nearest.h"
#include "shared/base/error.h"
#include "traces/types_proto.h"

namespace cp::cli {
namespace {

void require(const std::string& value, std::string_view flag, std::string_view example) {
  if (value.empty()) throw InvalidInput(str(flag, " is missing; add such as ", flag, " ", example));
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

}  // namespace

RedistributeRequest make_request(const proto::Redistribute& job, const Target& device) {
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
  RedistributeRequest request{
      layout("--from", job.from(), mesh), layout("--to", job.to(), to_mesh), {}, {}, job.seed(),
      target_of(job.target(), device)};
  request.options.cost = cost_model(job.cost());
  require_axes(request.options.cost, mesh, to_mesh);
  request.options.objective =
      job.objective() == proto::Redistribute::bytes ? Objective::bytes : Objective::time;
  if (job.has_max_memory_factor()) request.options.max_memory_factor = job.max_memory_factor();
  if (job.travel_dtype() != 0)
    request.options.travel_dtype = from_proto(job.travel_dtype(), {path, "travel_dtype"});
  if (job.schedule() == proto::Redistribute::baton) request.schedule = sim::Schedule::baton;
  return request;
}

Shape parse_shape(std::string_view text) {
  if (text == "scalar") return {};
  Shape shape = parse_ints(text, 'x', "size");
  for (const std::int64_t size : shape) {
    if (size < 0) throw InvalidInput(str("size ", size, " is negative; write such as 1024x1024x256"));
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

}  // namespace cp::cli
