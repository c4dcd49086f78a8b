// Shrinks a failing case: looks for the smallest case that breaks the same property.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Simpler cases than this one, the boldest first: whole parts are left out, then sizes halved, then made less
// by one. Some of them may be no cases at all.
std::vector<proto::FuzzCase> simpler_cases(const proto::FuzzCase& fuzz_case);

struct ShrinkOptions {
  std::chrono::steady_clock::time_point deadline;
  // Whether a case breaks the same property. Returns the case together with what was found, or nothing.
  std::function<std::optional<proto::FuzzCase>(const proto::FuzzCase&)> still_fails;
  std::function<bool()> stopped = [] { return false; };  // asked before each case
};

// Takes the first simpler case that still fails, again and again, until none does or the deadline has passed.
// Returns the best case so far.
proto::FuzzCase shrink(proto::FuzzCase fuzz_case, const ShrinkOptions& options);

}  // namespace cp::sim
