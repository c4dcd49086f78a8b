// A job of three faulty ranks, one of which (or the launcher) is told to misbehave.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "shared/base/text.h"
#include "tests/cprun/run_program.h"

namespace cp::testing {

constexpr int kFaultyRanks = 3;
// No rank that is well may be silent for the timeout, nor the server take for lost who was stopped before the
// launcher says so, at half of it: so it is ten times what a quiet machine needs.
constexpr std::chrono::seconds kTimeout{10}, kGrace{1};
// The promise is to end within timeout + grace + 2 s on a quiet machine; this one may be ten times slower.
constexpr std::chrono::seconds kSlack{20};

class FaultyJob {
 public:
  // As faulty_rank.cc has them.
  FaultyJob(const std::string& fault, const std::string& place, const std::string& who, int steps = 6);

  Program& program() { return program_; }
  void wait_for_fault();
  std::string fault_pid() const;  // of the process that misbehaved; "of nobody" when none did

  using Clock = std::chrono::steady_clock;
  // Waits until it ends, and checks what holds for every job: in time after the fault, which must have been
  // noted, or after `since`, no process left, the port free.
  void finish(std::optional<Clock::time_point> since = {});

  // What does not hold goes to the report; checks of what it said come after finish().
  void check(bool holds, const std::string& what);
  void check_code(int code);
  void check_says(const std::string& text);
  void check_one_cause();  // in one line of the launcher's own

  std::string report() const;  // empty when nothing was wrong

 private:
  struct Note {
    std::string pid;
    Clock::time_point when;
  };
  std::optional<Note> note() const;  // nothing before the fault

  std::string name_, wrong_;
  std::uint16_t port_;
  Program program_;
  ProgramEnd end_;
};

}  // namespace cp::testing
