// What a command that ran several strategies ends with.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "shared/base/error.h"
#include "sim/proof/run/pass_traces.h"

namespace cp::cli {

// Nothing if all outcomes are exact. A failed ledger is reported rather than wrong data, because it explains
// them.
template <class Outcome>
std::optional<ErrorKind> error_of(const std::vector<Outcome>& outcomes) {
  std::optional<ErrorKind> error;
  for (const Outcome& outcome : outcomes) {
    if (outcome.exact()) continue;
    const bool ledger =
        outcome.run && std::any_of(outcome.run->verdicts.begin(), outcome.run->verdicts.end(),
                                   [](const sim::Verdict& verdict) { return !verdict.holds; });
    if (ledger) return ErrorKind::ledger;
    error = ErrorKind::check_failed;
  }
  return error;
}

}  // namespace cp::cli
