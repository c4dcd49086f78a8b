// The guardian is a process that lives a moment longer than the launcher, and kills what the launcher left.
#pragma once

#include <string>
#include <sys/types.h>

#include "runtime/descriptor.h"

namespace cp::runtime {

// The constructor forks a process that runs no other program. It has a session of its own, and no descriptor
// but the end of a pipe. When the launcher is gone, in whatever way, the pipe is closed. Then the guardian
// sends SIGKILL to the process groups that it was told of, and to all processes that carry the launcher's
// mark (marked.h), and removes the launcher's temporary folder. (The death signal of prctl would end only the
// direct children, and not what they have started.)
class Guardian {
 public:
  // There are `slots` places for process groups. `folder` has files only; if it is empty, there is no folder.
  Guardian(int slots, std::string mark, std::string folder);
  ~Guardian();  // ends the guardian process
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }

  // Sets the process group of this slot that is to be killed; 0 stands for none. May be called in a forked
  // child.
  void guard(int slot, pid_t group) const noexcept;

 private:
  const std::string mark_, folder_;
  Pipe pipe_;
  pid_t pid_ = -1;
};

// Closes all descriptors from `first` on, now or on exec. May be called in a forked child.
void close_from(int first, bool on_exec) noexcept;

}  // namespace cp::runtime
