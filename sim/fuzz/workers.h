// Processes that judge numbered cases, until one of them fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "sim/fuzz/features.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

struct WorkOptions {
  int jobs = 1;                                               // the number of processes
  std::uint64_t end = 0;                                      // cases 0 .. end-1 are judged
  std::function<proto::FuzzCase(std::uint64_t number)> make;  // called in the workers
  std::chrono::seconds case_limit{120};                       // as in FuzzOptions
  // One case in so many of each worker is judged twice; 0 means none. Chosen: it costs a twentieth of the
  // time.
  std::uint64_t twice_each = 20;
  // If set, a case that is refused as none is a finding ("drawn case"), since generators must make legal
  // cases only. Otherwise it is an InvalidInput.
  bool may_be_none = false;
  const Coverage* coverage = nullptr;                           // what is known already; unset: nobody asks
  std::function<void(std::uint64_t number)> on_new_cells = {};  // called in the caller's process
};

// What has been done so far.
struct WorkStatus {
  std::uint64_t cases = 0;
};

// The first failure.
struct WorkFailure {
  std::uint64_t number = 0;
  proto::Finding finding;
};

struct WorkResult {
  std::uint64_t cases = 0;
  std::optional<WorkFailure> failure;
};

// Starts the workers and waits for them. Call it while the process has one thread, because it forks. It calls
// `go_on` a few times a second, and ends the work if that returns false. Throws InvalidInput for a case that
// is none, unless may_be_none is set, and if processes or pipes cannot be made.
WorkResult run_workers(const WorkOptions& options, const std::function<bool(const WorkStatus&)>& go_on);

}  // namespace cp::sim
