#include "sim/scenario/cost_fields.h"

#include <string>

#include <google/protobuf/descriptor.h>

#include "shared/base/error.h"
#include "sim/scenario/read_values.h"

namespace cp::sim {
namespace {

constexpr const char* kEfficiency = "Which part of the bandwidth this operation reaches";

constexpr CostField kFields[] = {
    {"step_latency_us", &CostModel::step_latency_us, "The time to start a communication step"},
    {"peer_latency_us", &CostModel::peer_latency_us, "The time of each round of a step"},
    {"local_latency_us", &CostModel::local_latency_us, "The time to start a local step"},
    {"memory_gbps", &CostModel::memory_gbps, "The rate of copies on a rank in GB/s, read plus written"},
    {"all_gather_efficiency", &CostModel::all_gather_efficiency, kEfficiency},
    {"reduce_scatter_efficiency", &CostModel::reduce_scatter_efficiency, kEfficiency},
    {"all_reduce_efficiency", &CostModel::all_reduce_efficiency, kEfficiency},
    {"all_to_all_efficiency", &CostModel::all_to_all_efficiency, kEfficiency},
    {"exchange_efficiency", &CostModel::exchange_efficiency, kEfficiency},
    {"node_gbps", &CostModel::node_gbps, "The bandwidth inside a node in GB/s, per rank and direction"},
    {"network_gbps", &CostModel::network_gbps, "The bandwidth across nodes in GB/s, per rank and direction"},
};

}  // namespace

std::span<const CostField> cost_fields() { return kFields; }

const google::protobuf::FieldDescriptor* descriptor_of(const CostField& field) {
  const auto* descriptor = proto::CostModel::descriptor()->FindFieldByName(field.name);
  CP_INVARIANT(descriptor != nullptr, "scenario.proto: CostModel has no ", field.name);
  return descriptor;
}

CostModel cost_model(const proto::CostModel& cost) {
  CostModel model;
  const auto* reflection = cost.GetReflection();
  for (const CostField& field : kFields) {
    const auto* descriptor = descriptor_of(field);
    if (reflection->HasField(cost, descriptor)) model.*field.member = reflection->GetDouble(cost, descriptor);
  }
  if (cost.has_ranks_per_node()) model.ranks_per_node = cost.ranks_per_node();
  model.axis_gbps = {cost.axis_gbps().begin(), cost.axis_gbps().end()};
  return model;
}

void parse_axis_gbps(std::string_view text, proto::CostModel& cost) {
  for (const std::string_view part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string axis(trim(part.substr(0, equals)));
    if (axis.empty() || equals == std::string_view::npos) {
      throw InvalidInput(
          str("--axis-gbps '", text, "': '", part, "' is no AXIS=GBPS; write, for example, dp=45,tp=300"));
    }
    (*cost.mutable_axis_gbps())[axis] = parse_real(str("--axis-gbps ", axis, "="), part.substr(equals + 1));
  }
}

}  // namespace cp::sim
