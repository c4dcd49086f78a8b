#include "tests/support/fabric_run.h"

#include <cstddef>
#include <utility>

namespace cp::testing {

FabricRun run_on_fabric(const PlanCase& plan_case, const sim::FabricOptions& options) {
  sim::Fabric fabric(static_cast<int>(plan_case.plans.size()), options);
  FabricRun run{std::vector<BufferValues>(plan_case.plans.size()), {}};
  fabric.run([&](Rank rank, Device& device) {
    run.outputs[static_cast<std::size_t>(rank)] =
        run_plan_case(plan_case, rank, device, &fabric.traces()[static_cast<std::size_t>(rank)]);
  });
  run.traces = fabric.traces();
  return run;
}

std::vector<FabricRun> run_on_fabric(const std::vector<PlanCase>& cases) {
  std::vector<FabricRun> runs;
  for (const PlanCase& plan_case : cases) runs.push_back(run_on_fabric(plan_case));
  return runs;
}

std::string compare_with_fabric(const PlanCase& plan_case, const FabricRun& fabric,
                                runtime::ProcessDevice& device, RankTrace* trace) {
  const Rank rank = device.rank();
  RankTrace own;
  const BufferValues outputs = run_plan_case(plan_case, rank, device, &own);
  own.observed = device.take_observed();
  if (trace != nullptr) *trace = own;
  if (const std::string wrong = compare_outputs(plan_case, rank, outputs); !wrong.empty()) return wrong;
  const bool same_bits = plan_case.tolerance == 0 || device.host_memory();
  if (same_bits && outputs != fabric.outputs[static_cast<std::size_t>(rank)])
    return plan_case.name + ": other bits than the fabric's";
  const auto difference = first_difference({own}, {fabric.traces[static_cast<std::size_t>(rank)]});
  return difference ? plan_case.name + ": " + *difference : "";
}

}  // namespace cp::testing
