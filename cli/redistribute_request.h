// What `cpsim redistribute` is asked to do: the texts of flags and scenarios made into layouts and options.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/placement/layout.h"
#include "shared/redistribute/redistribution.h"
#include "sim/fabric/fabric.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

struct RedistributeRequest {
  Layout source, target;
  RedistributeOptions options;
  sim::Schedule schedule = sim::Schedule::parallel;
  std::uint64_t seed = 0;
  Target device_target = host_target();  // what the plans are made for
};

// Throws InvalidInput that names the flag at fault, quotes its text and says what would work. `device`: the target where the job names
// none.
RedistributeRequest make_request(const proto::Redistribute& job, const Target& device = host_target());

// "1024x1024x256", "4Kix512"; "scalar" has no dimensions. Throws InvalidInput.
Shape parse_shape(std::string_view text);

// The names of dtypes, objectives and schedules. Throw InvalidInput that lists them.
proto::DType parse_proto_dtype(std::string_view flag, std::string_view text);
proto::Redistribute::Objective parse_objective(std::string_view text);
proto::Redistribute::Schedule parse_schedule(std::string_view text);

}  // namespace cp::cli
