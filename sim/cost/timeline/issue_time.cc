#include "sim/cost/timeline/issue_time.h"

#include <variant>

#include "shared/base/units.h"

namespace cp::sim {
double issue_ns(const Step& step, const SoftwareProfile& software) {
  if (software.captured_graphs) return 0;
  if (std::holds_alternative<Kernel>(step.work)) return software.kernel_issue_us * kNsPerUs;
  const Collective& collective = std::get<Collective>(step.work);
  if (const auto* exchange = std::get_if<Exchange>(&collective)) {
    const std::size_t transfers = exchange->sends.size() + exchange->recvs.size();
    return static_cast<double>(transfers) * software.transfer_issue_us * kNsPerUs;
  }
  return software.collective_issue_us * kNsPerUs;
}

SoftwareProfile without_host(SoftwareProfile software) {
  software.captured_graphs = true;
  return software;
}

}  // namespace cp::sim
