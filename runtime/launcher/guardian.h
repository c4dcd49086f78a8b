// Guardian: a process that outlives the launcher by a moment, and kills what the launcher left.
#pragma once

#include <string>
#include <sys/types.h>

#include "runtime/descriptor.h"

namespace cp::runtime {

// Forks a process without a program of its own, in a session of its own and with no descriptor but the end of
// a pipe. When the launcher is gone, however it went, the pipe says so, and the guardian sends SIGKILL to the
// process groups that it was told of and to all processes that carry the launcher's mark (marked.h), and then
// removes the launcher's temporary folder. (The death signal of prctl ends the direct children alone, and not
// what they have started.)
class Guardian {
 public:
  // `folder` holds files alone; empty: there is none.
  Guardian(int slots, std::string mark, std::string folder);
  ~Guardian();  // ends the guardian process
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }

  // The process group to kill of this slot; 0: none any more. May be called in a forked child.
  void guard(int slot, pid_t group) const noexcept;

 private:
  const std::string mark_, folder_;
  Pipe pipe_;
  pid_t pid_ = -1;
};

// Closes, now or on exec, all descriptors from this one on. May be called in a forked child.
void close_from(int first, bool on_exec) noexcept;

}  // namespace cp::runtime
