// Makes signals something that a loop over poll() can wait for.
#pragma once

#include <csignal>
#include <map>
#include <vector>

#include "runtime/descriptor.h"

namespace cp::runtime {

// While a SignalScope exists, SIGINT, SIGTERM, SIGHUP and SIGQUIT are only collected, whichever thread they
// reach; SIGCHLD wakes whoever polls fd(); and SIGPIPE is ignored. If SIGINT, SIGHUP or SIGQUIT were ignored
// before (by nohup, or in a shell's background job), they stay ignored. The destructor brings back what was
// before. There may be only one at a time, which CP_INVARIANT checks.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  int fd() const { return pipe_.read_end.get(); }  // readable when something came
  // Returns all signals but SIGCHLD that came since the last call, each as often as it came.
  std::vector<int> take();

  // To be called in a forked child before exec. Brings back what was before the scope, and calls only what a
  // signal handler may call.
  void restore() const noexcept;

 private:
  Pipe pipe_;
  sigset_t mask_before_;
  std::map<int, struct sigaction> before_;
};

// Blocks all signals of this thread while it exists, so that a forked child runs no handler before it is
// ready.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace cp::runtime
