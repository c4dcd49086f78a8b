// Processes that judge numbered cases, until one fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "sim/fuzz/features.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

struct WorkOptions {
  int jobs = 1;
  std::uint64_t end = 0;                                      // cases 0 .. end-1
  std::function<proto::FuzzCase(std::uint64_t number)> make;  // called in the workers
  std::chrono::seconds case_limit{120};
  std::uint64_t twice_each = 20;  // one case in so many is judged twice; 0: none
  // A case that is refused as none is a finding ("drawn case"): generators make legal ones alone.
  bool may_be_none = false;
  const Coverage* coverage = nullptr;                           // what is known already; unset: nobody asks
  std::function<void(std::uint64_t number)> on_new_cells = {};  // called here
};

struct WorkStatus {
  std::uint64_t cases = 0;
};

struct WorkFailure {
  std::uint64_t number = 0;
  proto::Finding finding;
};

struct WorkResult {
  std::uint64_t cases = 0;
  std::optional<WorkFailure> failure;
};

// `go_on` is called a few times a second, and ends the work by false. Throws InvalidInput for a case that is
// none, unless may_be_none.
WorkResult run_workers(const WorkOptions& options, const std::function<bool(const WorkStatus&)>& go_on);

}  // namespace cp::sim
