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
  std::vector<std::string> environment;  // "NAME=value"; added to the launcher's own, or in its place
  int slot = 0;                          // the guardian's slot for the process group
  int in = -1, out = -1, err = -1;       // descriptors that become 0, 1 and 2
  int inherited = -1;  // stays open under its number, which is above 2; all other descriptors are closed
};

// Starts the program, and returns its process id when it runs. It has a process group of its own, which the
// guardian knows, and signals are handled as before the scope. It is killed if the calling thread dies.
// Throws InvalidInput if the program cannot be run: "cannot run './x': No such file or directory".
pid_t spawn(const SpawnRequest& request, const SignalScope& signals, const Guardian& guardian);

}  // namespace cp::runtime
