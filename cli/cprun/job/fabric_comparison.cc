#include "cli/cprun/job/fabric_comparison.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "cli/common/printable.h"
#include "shared/base/error.h"
#include "sim/present/traces/trace_compare_report.h"
#include "traces/compare.h"

namespace cp::cli {

bool equals_fabric(std::vector<RankTrace> simulated, std::string_view backend,
                   std::vector<RankTrace> measured) {
  // Ranks that have nothing to do: those of the world that the scenario's mesh leaves out, and all of a
  // tensor without elements.
  const auto without_idle = [](std::vector<RankTrace> ranks) {
    std::erase_if(ranks,
                  [](const RankTrace& trace) { return trace.issued.empty() && trace.observed.empty(); });
    return ranks;
  };
  sim::ComparedTraces traces{"fabric", std::string(backend), {}, {}, {}};
  traces.comparison = compare_traces(without_idle(std::move(simulated)), without_idle(std::move(measured)));
  const std::string text = printable(sim::compare_text(traces));
  const bool identical = traces.comparison.identical;
  fmt::print("{}", identical ? text.substr(0, text.find('\n') + 1) : text);
  if (std::fflush(stdout) != 0)
    throw InvalidInput(str("the result cannot be written: ", std::generic_category().message(errno)));
  return identical;
}

}  // namespace cp::cli
