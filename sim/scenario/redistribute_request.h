// What `cpsim redistribute` is asked to do: the texts of flags and scenarios made into layouts and options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shared/placement/layout.h"
#include "shared/redistribute/gradient.h"
#include "shared/redistribute/redistribution.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/fabric/fabric.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

struct RedistributeRequest {
  Layout source, target;
  RedistributeOptions options;
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;
  Target device_target = host_target();       // what the plans are made for
  std::optional<GradientRule> gradient = {};  // the backward of source -> target is asked for
  double gradient_scale = 1;                  // what --gradient-scale multiplies it with
  std::optional<Cluster> cluster = {};        // where it is timed; the cost of `options` is made of it
};

// The options with which the chain that is asked for is planned: of the backward where the request is for a
// gradient.
RedistributeOptions planning_options(const RedistributeRequest& request);

// The chain that is asked for, and what its result is multiplied with: the redistribution and 1, or its
// gradient. Throws as plan_redistribution() and plan_gradient() do.
Gradient plan_request(const RedistributeRequest& request);

// Throws InvalidInput that names the flag at fault, quotes its text and says what would work. `device`: the
// target where the job names none.
RedistributeRequest make_request(const proto::Redistribute& job, const Target& device = host_target());

// "1024x1024x256", "4Kix512"; "scalar" has no dimensions. Throws InvalidInput.
Shape parse_shape(std::string_view text);

// The names of dtypes, objectives, schedules, rules and scales of gradients. Throw InvalidInput that lists
// them.
proto::DType parse_proto_dtype(std::string_view flag, std::string_view text);
proto::Redistribute::Objective parse_objective(std::string_view text);
proto::Redistribute::Schedule parse_schedule(std::string_view text);
proto::Redistribute::Gradient parse_gradient(std::string_view text);
proto::Redistribute::GradientScale parse_gradient_scale(std::string_view text);

}  // namespace cp::sim
