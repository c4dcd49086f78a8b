// What the laws of one redistribution are about. For the files that hold these laws.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "shared/redistribute/gradient.h"
#include "sim/fuzz/judge.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::sim {

struct RedistributionSubject {
  // A law is not checked of larger cases. Chosen, so that a case stays within milliseconds: the laws plan and
  // run several redistributions each.
  static constexpr int kMostRanks = 16;
  static constexpr std::int64_t kMostElements = 1 << 13;  // all ranks together

  RedistributionSubject(const RedistributeRequest& request, const Gradient& gradient, const Trial& trial)
      : request_(request), gradient_(gradient), planned_(gradient.redistribution), trial_(trial) {}

  int ranks() const { return std::max(request_.source.mesh.size(), request_.target.mesh.size()); }
  Redistribution plan(const Layout& source, const Layout& target, const RedistributeOptions& options) const {
    return trial_.property("law refused", [&] { return plan_redistribution(source, target, options); });
  }
  // The options to plan a redistribution forward, even if the case asks for a gradient. Memory is at least
  // twice the usual, so that what a law makes of the case can be planned as well.
  RedistributeOptions forward_options() const {
    RedistributeOptions options = request_.options;
    options.max_memory_factor = std::max(options.max_memory_factor, 2.0);
    return options;
  }

  const RedistributeRequest& request_;
  const Gradient& gradient_;  // what the planner gave for the request
  const Redistribution& planned_;
  const Trial& trial_;
};

// Checks the laws that need data. Throws PropertyFailure.
void check_redistribution_data_laws(const RedistributionSubject& subject);

}  // namespace cp::sim
