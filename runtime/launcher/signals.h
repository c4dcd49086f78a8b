// Signals that a loop over poll() can wait for.
#pragma once

#include <csignal>
#include <map>
#include <vector>

#include "runtime/descriptor.h"

namespace cp::runtime {

// While one exists, SIGINT, SIGTERM, SIGHUP and SIGQUIT are only collected, whichever thread they reach,
// SIGCHLD wakes whoever polls fd(), and SIGPIPE is ignored. One at a time: CP_INVARIANT. SIGINT, SIGHUP and
// SIGQUIT stay ignored where they were (nohup, a shell's background job). The destructor brings back what was
// before.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  int fd() const { return pipe_.read_end.get(); }  // readable when something came
  std::vector<int> take();  // all but SIGCHLD since the last call, each as often as it came

  // In a forked child before exec: what was before the scope. Calls only what a signal handler may call.
  void restore() const noexcept;

 private:
  Pipe pipe_;
  sigset_t mask_before_;
  std::map<int, struct sigaction> before_;
};

// Blocks all signals of this thread, so that a forked child runs no handler before it has made itself ready.
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
