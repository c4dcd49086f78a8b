#include "cli/cprun/job/rank_memory.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "runtime/backend.h"
#include "runtime/job_environment.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/proof/run/free_memory.h"
#include "sim/scenario/rank_job.h"

namespace cp::cli {

void require_rank_memory(const proto::Scenario& scenario, const LaunchRequest& request, int first, int here) {
  const std::optional<std::int64_t> free = sim::free_memory_bytes();
  if (!free) return;
  // Ranks have equal shares, but for a row or a block.
  const sim::RankMemory each = sim::rank_memory(scenario, first);
  const runtime::Backend& backend = runtime::find_backend(request.backend);
  const double bytes = static_cast<double>(each.inputs) +
                       (backend.on_gpus ? 0 : static_cast<double>(each.plans)) +
                       (request.verify ? static_cast<double>(each.results) : 0);
  const double needed = bytes * here;
  if (needed <= static_cast<double>(*free)) return;
  const double share = static_cast<double>(*free) / needed;
  const auto rows =
      static_cast<double>(scenario.has_run() ? scenario.run().seq_len() : scenario.recurrence().seq_len());
  const auto shown = [](double size) {
    return human_bytes(static_cast<std::int64_t>(std::min(size, 0x1p62)));
  };
  throw InvalidInput(
      str(here, here == 1 ? " rank on this machine needs " : " ranks on this machine need ", shown(needed),
          " (", shown(bytes), " each), but only ", human_bytes(*free), " are free; use ",
          scenario.has_run() || scenario.has_recurrence()
              ? str("seq_len: ", std::max<std::int64_t>(1, static_cast<std::int64_t>(share * rows)))
              : str("a shape with ", std::max(1, static_cast<int>(100 * share)), " % of the elements"),
          ", or more machines (--nnodes)"));
}

}  // namespace cp::cli
