#include "cli/cost_flags.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include "cli/flags.h"
#include "shared/base/error.h"

namespace cp::cli {
namespace {

struct CostFlag {
  const char* field;  // of proto::CostModel
  double CostModel::*member;
  const char* help;
};

constexpr CostFlag kFlags[] = {
    {"step_latency_us", &CostModel::step_latency_us, "Start of a communication step"},
    {"peer_latency_us", &CostModel::peer_latency_us, "Each round of a step"},
    {"local_latency_us", &CostModel::local_latency_us, "Start of a local step"},
    {"memory_gbps", &CostModel::memory_gbps, "GB/s of copies on a rank, read plus written"},
    {"all_gather_efficiency", &CostModel::all_gather_efficiency, "Part of the bandwidth that it reaches"},
    {"reduce_scatter_efficiency", &CostModel::reduce_scatter_efficiency,
     "Part of the bandwidth that it reaches"},
    {"all_reduce_efficiency", &CostModel::all_reduce_efficiency, "Part of the bandwidth that it reaches"},
    {"all_to_all_efficiency", &CostModel::all_to_all_efficiency, "Part of the bandwidth that it reaches"},
    {"exchange_efficiency", &CostModel::exchange_efficiency, "Part of the bandwidth that it reaches"},
    {"node_gbps", &CostModel::node_gbps, "GB/s per rank and direction inside a node"},
    {"network_gbps", &CostModel::network_gbps, "GB/s per rank and direction across nodes"},
};

std::string flag_name(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return str("--", field);
}

const google::protobuf::FieldDescriptor* descriptor_of(const CostFlag& flag) {
  const auto* field = proto::CostModel::descriptor()->FindFieldByName(flag.field);
  CP_INVARIANT(field != nullptr, "scenario.proto: CostModel has no ", flag.field);
  return field;
}

}  // namespace

void add_cost_flags(CLI::App& app, proto::CostModel& cost) {
  const CostModel defaults;
  const std::string group = "Cost model";
  for (const CostFlag& flag : kFlags) {
    const auto* field = descriptor_of(flag);
    const std::string name = flag_name(flag.field);
    add_value(app, name.c_str(), "NUMBER", fmt::format("{} [{}]", flag.help, defaults.*flag.member),
              [&cost, field, name](const std::string& text) {
                cost.GetReflection()->SetDouble(&cost, field, parse_real(name, text));
              })
        ->group(group);
  }
  add_value(
      app, "--ranks-per-node", "N",
      fmt::format("Consecutive ranks that share a node [{}]", defaults.ranks_per_node),
      [&cost](const std::string& text) {
        cost.set_ranks_per_node(static_cast<int>(parse_whole("--ranks-per-node", text, 1, Mesh::kMaxRanks)));
      })
      ->group(group);
  add_value(app, "--axis-gbps", "AXIS=GBPS,...",
            "GB/s of single mesh axes, such as dp=45,tp=300; overrides node and network",
            [&cost](const std::string& text) { parse_axis_gbps(text, cost); })
      ->group(group);
}

CostModel cost_model(const proto::CostModel& cost) {
  CostModel model;
  const auto* reflection = cost.GetReflection();
  for (const CostFlag& flag : kFlags) {
    const auto* field = descriptor_of(flag);
    if (reflection->HasField(cost, field)) model.*flag.member = reflection->GetDouble(cost, field);
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
          str("--axis-gbps '", text, "': '", part, "' is no AXIS=GBPS; write such as dp=45,tp=300"));
    }
    (*cost.mutable_axis_gbps())[axis] = parse_real(str("--axis-gbps ", axis, "="), part.substr(equals + 1));
  }
}

}  // namespace cp::cli
