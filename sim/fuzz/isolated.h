// Judges a case in a process of its own, so that one that aborts, crashes or never ends is a finding too, and
// ends nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "sim/fuzz/judge.h"

namespace cp::sim {

struct IsolatedJudgement {
  bool is_case = true;  // false if it means nothing or asks for what is not allowed; `refusal` says why
  std::string refusal;
  Judgement judgement;
};

// The finding of a process that ended without saying what it found: property "crash", with the end of what
// the process wrote on standard error. `wait_status` is that of waitpid().
proto::Finding crash_finding(int wait_status, const std::string& error_text);
// The finding of a case that took longer than the limit (case_clock.h): property "time".
proto::Finding time_finding(std::chrono::seconds limit);

// Judges the case. Call it while the process has one thread, because it forks. Returns nothing if `stop` was
// set meanwhile. Throws InvalidInput if no process or pipe can be made.
std::optional<IsolatedJudgement> judge_isolated(const proto::FuzzCase& fuzz_case, std::chrono::seconds limit,
                                                const std::atomic<bool>* stop = nullptr);

}  // namespace cp::sim
