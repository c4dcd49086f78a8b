// Starts one process of the job.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "runtime/launcher/guardian.h"
#include "runtime/launcher/signals.h"

namespace cp::runtime {

struct SpawnRequest {
  const std::vector<std::string>& argv;
  std::vector<std::string> environment;  // "NAME=value", over the launcher's own
  int slot = 0;                          // of the guardian
  int in = -1, out = -1, err = -1;       // become 0, 1 and 2
  int inherited = -1;  // stays open under its number, beyond 2; all other descriptors are closed
};

// Returns when the program runs: in a process group of its own that the guardian knows, with the signals as
// they were before the scope, and killed when the calling thread dies. Throws InvalidInput: "cannot run
// './x': No such file or directory".
pid_t spawn(const SpawnRequest& request, const SignalScope& signals, const Guardian& guardian);

}  // namespace cp::runtime
