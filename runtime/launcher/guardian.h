// Guardian: a process that outlives the launcher by a moment, and kills what the launcher left.
#pragma once

#include <sys/types.h>

#include "runtime/descriptor.h"

namespace cp::runtime {

// Forks a process without a program of its own, in a session of its own and with no descriptor but the end of a pipe. When
// the launcher is gone, however it went, the pipe says so, and the guardian sends SIGKILL to the process groups that it was told
// of. (The death signal of prctl ends the direct children alone, and not what they have started.)
class Guardian {
 public:
  explicit Guardian(int slots);
  ~Guardian();  // ends the guardian process
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // The process group to kill of this slot; 0: none any more. May be called in a forked child.
  void guard(int slot, pid_t group) const noexcept;

 private:
  Pipe pipe_;
  pid_t pid_ = -1;
};

// Closes, now or on exec, all descriptors from this one on. May be called in a forked child.
void close_from(int first, bool on_exec) noexcept;

}  // namespace cp::runtime
