// Judging in a process of its own: a case that aborts, crashes or never ends is a finding too, and ends
// nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "sim/fuzz/judge.h"

namespace cp::sim {

struct IsolatedJudgement {
  bool is_case = true;  // false: it means nothing, or asks for what is not allowed (why: `refusal`)
  std::string refusal;
  Judgement judgement;
};

// How a process ended that judged a case without saying what it found: property "crash" with the end of what
// it wrote on standard error.
proto::Finding crash_finding(int wait_status, const std::string& error_text);
// A case that took longer than this (case_clock.h): property "time".
proto::Finding time_finding(std::chrono::seconds limit);

// Forks: to be called while the process has one thread. Nothing where `stop` was set meanwhile.
std::optional<IsolatedJudgement> judge_isolated(const proto::FuzzCase& fuzz_case, std::chrono::seconds limit,
                                                const std::atomic<bool>* stop = nullptr);

}  // namespace cp::sim
