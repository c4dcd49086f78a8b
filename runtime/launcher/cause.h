// Which of several failures was the cause of the others.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/types.h"

namespace cp::runtime {

// Something that may have been the first failure.
struct Suspect {
  Rank rank = -1;
  std::optional<int> signal;          // that killed it
  int exit_code = 0;                  // 128 + n for signal n
  std::optional<std::string> report;  // what fail() was told; none for a process that was seen to end
  int pass = 0;                       // grows with time; equal for what one look at all processes found
  std::string what = {};              // of a report of the launcher's own: the middle of its text
};

// Whether it mostly comes of another failure: SIGPIPE, and the exit codes of timeout, peer_lost, rendezvous
// and cancelled of a process that was seen to end.
bool mostly_consequence(const Suspect& suspect);

// Collects suspects for as long as a process that failed first may be seen after its consequences.
class CauseFinder {
 public:
  using Clock = std::chrono::steady_clock;

  void add(Suspect suspect, Clock::time_point now);
  bool empty() const { return suspects_.empty(); }

  // When no better suspect is waited for: 100 ms after the first, or `patience` while there are only such as
  // are mostly consequences: their cause may have happened on another machine, whose launcher takes its own
  // 100 ms.
  Clock::time_point deadline(std::chrono::milliseconds patience) const;

  // The earliest, where
  // - what is mostly a consequence comes after all else;
  // - of ends that were seen at once, a signal that no lost peer causes comes first, then the lower rank;
  // - a report gives way to a later end of the process that it is about; and a report or SIGABRT to a later
  // death by such
  //   a signal: peers may see closed connections before the launcher sees the end.
  const Suspect& cause() const;

 private:
  std::vector<Suspect> suspects_;
  Clock::time_point first_{};
};

// "SIGKILL"; "signal 40".
std::string signal_name(int signal);

// "was killed by SIGKILL", "ended with exit code 1".
std::string end_text(const Suspect& suspect);

}  // namespace cp::runtime
