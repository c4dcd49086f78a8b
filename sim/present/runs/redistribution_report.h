// Reports a planned redistribution, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shared/redistribute/redistribution.h"
#include "sim/proof/run/redistribute_run.h"

namespace cp::sim {

struct Explanation {
  Redistribution chosen;
  Objective objective = Objective::time;
  double max_memory_factor = 1;
  // The forward redistribution, if this is its backward; else empty.
  std::string gradient_of = {};
  // The factor of the Scale step that every plan of a gradient ends with. 1 means that there is none.
  double scale = 1;
  double scale_time_us = 0;
  std::string cluster = {};  // the cluster that the times are of; empty if they are the cost model's
  // Other plans, if they differ from the chosen one.
  std::optional<Redistribution> direct = {};
  std::optional<Redistribution> leanest = {};
  bool leanest_is_direct = false;
  std::vector<Redistribution> pareto = {};  // --pareto: fastest first
};

// The steps as a chain: "all_gather(tp) > all_to_all(dp,cp)", with a scale " > scale x0.25", and without
// steps "nothing to do".
std::string chain_text(const Redistribution& redistribution, double scale = 1);

std::string report_text(const Explanation& explanation);
// The keys are `steps`, `totals`, and what the text says beside them.
nlohmann::ordered_json report_json(const Explanation& explanation);

// "verified: 8 ranks, 1 GiB compared, ...".
std::string run_text(const sim::RedistributeRun& run);
nlohmann::ordered_json run_json(const sim::RedistributeRun& run);

}  // namespace cp::sim
