// Makes layouts and options from the texts of flags and scenarios: what `cpsim redistribute` is asked to do.
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
  Target device_target = host_target();  // what the plans are made for
  // If this is given, the backward of source -> target is asked for.
  std::optional<GradientRule> gradient = {};
  double gradient_scale = 1;  // what --gradient-scale multiplies it with
  // The cluster on which it is timed. The cost model in `options` is made from it.
  std::optional<Cluster> cluster = {};
};

// Returns the options with which the chain is planned; for a gradient, those of the backward.
RedistributeOptions planning_options(const RedistributeRequest& request);

// Returns the chain that is asked for, and the factor of its result: the redistribution and 1, or its
// gradient. Throws as plan_redistribution() and plan_gradient() do.
Gradient plan_request(const RedistributeRequest& request);

// Reads the job. `device` is the target if the job names none. Throws InvalidInput that names the flag at
// fault, quotes its text and says what would work.
RedistributeRequest make_request(const proto::Redistribute& job, const Target& device = host_target());

// Reads a shape: "1024x1024x256", "4Kix512". "scalar" has no dimensions. Throws InvalidInput.
Shape parse_shape(std::string_view text);

// Read the names of dtypes, objectives, schedules, rules and scales of gradients. They throw InvalidInput
// that lists the names.
proto::DType parse_proto_dtype(std::string_view flag, std::string_view text);
proto::Redistribute::Objective parse_objective(std::string_view text);
proto::Redistribute::Schedule parse_schedule(std::string_view text);
proto::Redistribute::Gradient parse_gradient(std::string_view text);
proto::Redistribute::GradientScale parse_gradient_scale(std::string_view text);

}  // namespace cp::sim
