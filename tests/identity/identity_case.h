// A scenario on a rank's own device, compared with the simulated fabric: traces, issued, observed and
// digests, and the rank's results.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/target.h"
#include "shared/plan/trace.h"
#include "traces/scenario.pb.h"

namespace cp::testing {

struct IdentityCase {
  std::string name;
  proto::Scenario scenario;             // names its target, so that whoever runs it again plans for that
  std::map<Rank, RankTrace> simulated;  // of the ranks that have a part
};

// Runs the scenario on the fabric. `target`: what its plans are made for.
IdentityCase make_identity_case(std::string name, proto::Scenario scenario, const Target& target);

// Runs the device's rank's part of each case, one after the other. Returns what differs, in words: each
// finding as explain() tells it; empty where nothing does. A case that throws is the last, since the device
// is of no further use to the other ranks.
std::string run_cases(const std::vector<IdentityCase>& cases, runtime::ProcessDevice& device,
                      std::string_view cprun);

// The finding, the scenario, which is left as a file, and the command that runs it again; it begins with
// `cprun` ("cprun --backend nccl").
std::string explain(const IdentityCase& identity_case, std::string_view cprun, std::string_view finding);

}  // namespace cp::testing
