// The body of Launcher::run(): one loop over all that can happen to the processes of a job.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "runtime/descriptor.h"
#include "runtime/launcher/cause.h"
#include "runtime/launcher/guardian.h"
#include "runtime/launcher/launcher.h"
#include "runtime/launcher/output.h"
#include "runtime/launcher/signals.h"

namespace cp::runtime {

// Keeps what Launcher::fail() was told until the loop takes it. Any thread may call add().
class FailureReports {
 public:
  FailureReports();
  void add(Suspect report);
  std::vector<Suspect> take();
  int fd() const { return wake_.read_end.get(); }  // readable when there are some

 private:
  std::mutex mutex_;
  std::vector<Suspect> reports_;
  Pipe wake_;
};

// While a Subreaper exists, descendants whose parents have died become children of this process, so that it
// can see them end (PR_SET_CHILD_SUBREAPER of prctl(2)).
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

class LauncherRun {
 public:
  LauncherRun(const LaunchOptions& options, FailureReports& reports);
  ~LauncherRun();  // kills what is left, which is nothing if finish() has returned
  LauncherRun(const LauncherRun&) = delete;
  LauncherRun& operator=(const LauncherRun&) = delete;

  LaunchResult finish();

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // A process and, when it has ended, what is left of its group.
  struct Process {
    ProcessEnd end;
    RankOutput out, err;
    std::string last_words;                   // the last line of its stderr when it ended
    bool ended = false;                       // the process has ended
    bool group_ended = false;                 // its group has, too
    bool gone = false;                        // what had left the group has, too
    std::vector<pid_t> strays = {};           // descendants that have left the group and were told to end
    bool has_strays = true;                   // whether there may be any, as far as is known
    std::optional<Time> stopped_since;        // set while it is stopped
    std::optional<Time> kill_at, give_up_at;  // when what is left of the group is killed, or given up
  };
  enum class Phase { running, failed, stopping, killing };
  // Used if LaunchOptions::patience is not set. Chosen: longer than the 100 ms that a launcher on another
  // machine takes to find the cause there, with time for its message.
  static constexpr std::chrono::milliseconds kPatience{500};

  void start_all();
  void start(int index, int null_device);
  void wait(Time now);
  void flush_outputs();
  Time next_deadline() const;
  bool all_gone() const;

  void take_signals(Time now);
  void take_reports(Time now);
  void reap(Time now);
  void reap_process(Process& process, Time now);
  void reap_group(Process& process);
  void look_for_strays(Time now);
  void end_stray(Process& process, pid_t pid, Time now);
  void settle(Process& process, Time now);
  bool is_over(const Process& process, Time now) const;  // whether the grace for what it left is over
  void look_for_stop(Process& process, Time now);
  void keep_deadlines(Time now);

  std::string with_where(const Process& process, const std::string& what) const;
  std::string about(const Process& process, const std::string& what) const;
  Time suspects_deadline() const { return suspects_.deadline(patience_.value_or(kPatience)); }
  void suspect(Suspect suspect, Time now);
  void decide(Time now);
  ProcessFailure failure_of(const Suspect& cause) const;
  void signal_all(int signal);
  void stop_all(int signal, Time now);
  void kill_all();
  LaunchResult result();

  const LaunchOptions& options_;
  FailureReports& reports_;
  SignalScope signals_;
  Subreaper subreaper_;
  const std::string mark_;
  Guardian guardian_;
  LineSink out_, err_;
  std::vector<Process> processes_;
  std::vector<pollfd> polled_;

  Phase phase_ = Phase::running;
  Time phase_ends_{};  // only in the phases failed and stopping
  CauseFinder suspects_;
  std::optional<std::chrono::milliseconds> patience_;  // set once it was asked for
  int pass_ = 0;
  Time look_at_{};  // strays are not looked for before this time
  std::optional<ProcessFailure> first_failure_;
  std::optional<int> interrupted_by_;
};

}  // namespace cp::runtime
