// Finds out which of several failures was the cause of the others.
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
  std::optional<int> signal;          // the signal that killed it
  int exit_code = 0;                  // 128 + n for signal n
  std::optional<std::string> report;  // the text given to fail(); none for a process that was seen to end
  int pass = 0;                       // grows with time; suspects found by one look at all processes share it
  std::string what = {};              // the middle of the text, if the launcher itself made the report
};

// Whether such a failure is mostly the consequence of another one. That holds for a process that was seen to
// end by SIGPIPE, or with the exit code of timeout, peer_lost, rendezvous or cancelled.
bool mostly_consequence(const Suspect& suspect);

// A CauseFinder collects suspects for a while, because the process that failed first may be seen to end later
// than those that fail in consequence.
class CauseFinder {
 public:
  using Clock = std::chrono::steady_clock;

  void add(Suspect suspect, Clock::time_point now);
  bool empty() const { return suspects_.empty(); }

  // The time until which better suspects are waited for: 100 ms (chosen) after the first one, or `patience`
  // after it as long as all are mostly consequences. Then the cause may have happened on another machine,
  // whose launcher waits its own 100 ms before it tells.
  Clock::time_point deadline(std::chrono::milliseconds patience) const;

  // Returns the likeliest cause. There must be a suspect. It is the earliest one, except that
  //   - suspects that are mostly consequences come after all others;
  //   - of ends seen by the same look, one by a signal that no lost peer causes (any but SIGPIPE and SIGABRT)
  //     comes first, and then the lower rank;
  //   - a report gives way to the later end of the process that it is about; and a report, SIGABRT or SIGPIPE
  //     gives way to a later death by a signal that no lost peer causes. Peers may see closed connections
  //     before the launcher sees the end.
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
