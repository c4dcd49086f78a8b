// A plan case on a rank's own device, compared with the simulated fabric: bits of the outputs, and traces.
#pragma once

#include <string>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/trace.h"
#include "sim/fabric/fabric.h"
#include "tests/support/hand_plans.h"

namespace cp::testing {

struct FabricRun {
  std::vector<BufferValues> outputs;  // by rank
  std::vector<RankTrace> traces;
};

FabricRun run_on_fabric(const PlanCase& plan_case, const sim::FabricOptions& options = {});
std::vector<FabricRun> run_on_fabric(const std::vector<PlanCase>& cases);

// Runs the case on the device. Returns what differs from the definition or from the fabric, in words; empty
// where nothing does. Bits are compared where the case is exact, or where the device has the host's memory
// and so its kernels. The device's trace goes to `trace`.
std::string compare_with_fabric(const PlanCase& plan_case, const FabricRun& fabric,
                                runtime::ProcessDevice& device, RankTrace* trace = nullptr);

}  // namespace cp::testing
