#include "tests/cprun/faulty_job.h"

#include <csignal>
#include <sstream>

namespace cp::testing {

using namespace std::chrono_literals;

FaultyJob::FaultyJob(const std::string& fault, const std::string& place, const std::string& who, int steps)
    : name_(str(fault, " ", place, " ", who)),
      port_(free_port()),
      program_({"/bin/sh", "-c", "NOTE=${CP_PROGRAM_OF_A_TEST}/note exec \"$@\"", "sh", built("cprun"),
                "--timeout", str(kTimeout.count()), "--grace", str(kGrace.count()), "--nproc-per-node",
                str(kFaultyRanks), "--rdzv-endpoint", str("127.0.0.1:", port_), "--", built("faulty_rank")},
               {"FAULT=" + fault, "AT=" + place, "WHO=" + who, str("STEPS=", steps)}) {}

void FaultyJob::wait_for_fault() {
  check(within(20s, [&] { return program_.read("note").find('\n') != std::string::npos; }), "no fault");
}

void FaultyJob::finish(std::optional<Clock::time_point> since) {
  end_ = program_.finish(kTimeout + kGrace + kSlack + 5s);
  if (!since) {
    const std::optional<Note> noted = note();
    check(noted.has_value(), "no fault was noted, so nobody knows whether it ended in time");
    if (noted) since = noted->when;
  }
  if (since) check(end_.when - *since < kTimeout + kGrace + kSlack, "ended late");
  // What is left when the launcher itself was killed is about to be killed; else there is nothing.
  const bool launcher_died = end_.exit_code == 128 + SIGKILL && name_.ends_with("launcher");
  check(within(launcher_died ? kSlack : 0s, [&] { return program_.processes().empty(); }), "left processes");
  check(is_free(port_), "the port is in use");
}

void FaultyJob::check(bool holds, const std::string& what) {
  if (!holds) wrong_ += str(what, "; ");
}

void FaultyJob::check_code(int code) { check(end_.exit_code == code, str("not exit code ", code)); }

void FaultyJob::check_says(const std::string& text) {
  check(end_.err.find(text) != std::string::npos, str("does not say '", text, "'"));
}

void FaultyJob::check_one_cause() {
  std::size_t lines = 0;
  std::istringstream in(end_.err);
  for (std::string line; std::getline(in, line);) lines += line.starts_with("cprun: ") ? 1 : 0;
  check(lines == 1, str(lines, " lines of cprun's own"));
}

std::string FaultyJob::report() const {
  if (wrong_.empty()) return "";
  std::string after;
  if (const std::optional<Note> noted = note()) {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(end_.when - noted->when);
    after = str(" ", late.count(), " ms after the fault");
  }
  return str(name_, ": ", wrong_, "exit code ", end_.exit_code, after, "\n", end_.out, end_.err);
}

std::string FaultyJob::fault_pid() const {
  const std::optional<Note> noted = note();
  return noted ? noted->pid : "of nobody";
}

std::optional<FaultyJob::Note> FaultyJob::note() const {
  std::istringstream in(program_.read("note"));
  std::string pid;
  std::int64_t nanoseconds = 0;
  if (!(in >> pid >> nanoseconds)) return std::nullopt;
  return Note{pid, Clock::time_point(std::chrono::nanoseconds(nanoseconds))};
}

}  // namespace cp::testing
