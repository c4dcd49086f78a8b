// Shrinking: the smallest case found that breaks the same property.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Simpler cases, the boldest steps first: whole parts left out, then sizes halved, then less by one. Some may
// be no cases at all.
std::vector<proto::FuzzCase> simpler_cases(const proto::FuzzCase& fuzz_case);

struct ShrinkOptions {
  std::chrono::steady_clock::time_point deadline;
  // Whether a case breaks the same property: gives what was found, with the finding in the case.
  std::function<std::optional<proto::FuzzCase>(const proto::FuzzCase&)> still_fails;
  std::function<bool()> stopped = [] { return false; };  // asked before each case
};

// Takes the first simpler case that still fails, again and again, until none does or the time is over; then
// the best so far.
proto::FuzzCase shrink(proto::FuzzCase fuzz_case, const ShrinkOptions& options);

}  // namespace cp::sim
