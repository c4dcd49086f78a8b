// The fields of a scenario's `cost`: they override numbers of the cost model of redistributions.
#pragma once

#include <span>
#include <string_view>

#include "shared/redistribute/cost_model.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

// A number that is a field of the message and of CostModel. `name` is its name in the message, and `meaning`
// is for --help.
struct CostField {
  const char* name;
  double CostModel::*member;
  const char* meaning;
};
std::span<const CostField> cost_fields();
const google::protobuf::FieldDescriptor* descriptor_of(const CostField& field);

// Returns the defaults of CostModel with the fields that are set in `cost`.
CostModel cost_model(const proto::CostModel& cost);

// Reads "dp=45,tp=300" (GB/s) into the message's map. Throws InvalidInput that quotes the text.
void parse_axis_gbps(std::string_view text, proto::CostModel& cost);

}  // namespace cp::sim
