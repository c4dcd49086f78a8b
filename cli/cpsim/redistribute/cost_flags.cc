#include "cli/cpsim/redistribute/cost_flags.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <google/protobuf/message.h>

#include "cli/common/flags.h"
#include "shared/base/error.h"
#include "sim/scenario/cost_fields.h"

namespace cp::cli {
namespace {

std::string flag_name(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return str("--", field);
}

}  // namespace

void add_cost_flags(FlagSet app, proto::CostModel& cost) {
  const CostModel defaults;
  const std::string group = "Cost model";
  for (const sim::CostField& field : sim::cost_fields()) {
    const auto* descriptor = sim::descriptor_of(field);
    const std::string name = flag_name(field.name);
    add_value(app, name.c_str(), "NUMBER", fmt::format("{} [{}]", field.meaning, defaults.*field.member),
              [&cost, descriptor, name](const std::string& text) {
                cost.GetReflection()->SetDouble(&cost, descriptor, parse_real(name, text));
              })
        .group(group);
  }
  add_value(
      app, "--ranks-per-node", "N",
      fmt::format("How many consecutive ranks share a node [{}]", defaults.ranks_per_node),
      [&cost](const std::string& text) {
        cost.set_ranks_per_node(static_cast<int>(parse_whole("--ranks-per-node", text, 1, Mesh::kMaxRanks)));
      })
      .group(group);
  add_value(
      app, "--axis-gbps", "AXIS=GBPS,...",
      "The bandwidth of single mesh axes in GB/s, for example dp=45,tp=300; it overrides that of node and "
      "network",
      [&cost](const std::string& text) { sim::parse_axis_gbps(text, cost); })
      .group(group);
}

}  // namespace cp::cli
