// Launcher: runs a program once for each rank of this machine, and ends all of these processes together.
//
// It knows nothing of the rendezvous. What that knows comes in through fail() and LaunchOptions::describe,
// and what the launcher finds out goes back through LaunchOptions::on_failure.
#pragma once

#include <chrono>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/descriptor.h"
#include "shared/base/error.h"
#include "shared/base/types.h"

namespace cp::runtime {

class FailureReports;

// What the job ended for. Later failures are taken for its consequences.
struct ProcessFailure {
  Rank rank = -1;  // -1: no single rank
  std::string host;
  std::int64_t pid = 0;       // 0: not a process of this launcher
  std::optional<int> signal;  // that killed it
  int exit_code = 0;          // of the job: 128 + n for a process that signal n killed
  // "rank 2 on host h (pid 123) was killed by SIGKILL in all_gather #3 of cp[0,1], step 12",
  // "... ended with exit code 1: <last line of its stderr>", "... was stopped by SIGSTOP for 1 s", or the
  // text that fail() was given.
  std::string text;
  // The middle of the text, where this launcher saw it: "was killed by SIGKILL in all_gather #3 of cp[0,1],
  // step 12".
  std::string what = {};
};

struct LaunchOptions {
  std::vector<std::string> argv;  // the program, looked up in PATH as a shell does, and its arguments
  // "NAME=value" for the process with this index on this machine, over the launcher's own environment.
  std::function<std::vector<std::string>(int local_index)> environment = {};
  // A descriptor beyond 2 that the process with this index keeps open, where it is one; asked after
  // `environment`, which may tell its number. It is closed here once the process has it.
  std::function<Descriptor(int local_index)> inherited = {};
  int nproc = 1;
  Rank first_rank = 0;  // process i is rank first_rank + i
  Rank world_size = 0;  // of all machines: prefixes are as wide as its largest rank; 0: the ranks here
  // Process 0 reads the launcher's stdin unless that is a terminal; the rest: /dev/null.
  bool stdin_to_first = false;
  std::chrono::milliseconds consequence_delay{200};  // after a failure, before the others get SIGTERM
  std::chrono::milliseconds grace{5'000};            // after SIGTERM or a forwarded signal, before SIGKILL
  std::chrono::milliseconds stopped_limit{
      0};                       // a process that is stopped (SIGSTOP) for so long has failed; 0: none has
  std::string log_dir;          // raw output of each rank besides, in rank-3.out and rank-3.err; empty: none
  bool prefix = true;           // "[rank 3] " before each line
  std::ostream* out = nullptr;  // null: std::cout
  std::ostream* err = nullptr;  // null: std::cerr
  // Goes with the launcher, if that is killed: files alone are in it. Empty: none. (Where it ends otherwise,
  // its owner removes it.)
  std::string temporary_folder = {};
  // This program has no children but those of the launcher: what becomes one, since its parent has died, is
  // what they started.
  bool has_no_other_children = false;
  std::string host;  // as it stands in texts; empty: this machine's name
  // What a rank was doing, such as "in all_gather #3 of cp[0,1,2,3], step 12"; empty where nobody knows.
  // Asked for the first rank that failed, when it has ended or been stopped.
  std::function<std::string(Rank)> describe = {};
  // When the first failure is known, before any other process is told to end.
  std::function<void(const ProcessFailure&)> on_failure = {};
  // How long a process that ended with what is mostly a consequence (timeout, peer lost, rendezvous) waits
  // for fail() to tell the cause; asked once, for the first that did. Not set: half a second.
  std::function<std::chrono::milliseconds(Rank)> patience = {};
};

struct ProcessEnd {
  Rank rank = 0;
  std::int64_t pid = 0;
  int exit_code = 0;          // 128 + n for a process that signal n killed
  std::optional<int> signal;  // that killed it
  std::chrono::steady_clock::time_point when;
};

struct LaunchResult {
  // 0; of the first failure; or 128 + n when the launcher was asked to end by signal n.
  int exit_code = 0;
  std::optional<ProcessFailure> first_failure;
  std::optional<int>
      interrupted_by;            // SIGINT, SIGTERM, SIGHUP or SIGQUIT to the launcher, before any failure
  int stopped = 0;               // processes besides the first failed that did not end with 0
  std::vector<ProcessEnd> ends;  // by rank
};

// "rank 2 on host h (pid 123) was killed by SIGKILL; 3 other ranks were stopped because of it"; empty for
// success.
std::string summary(const LaunchResult& result);

// Each process leads a process group of its own, and what it starts ends with it: what is left of a group
// when its first process has ended gets SIGTERM, and SIGKILL after the grace. So do descendants that have
// started a group or a session of their own, found by a variable of their environment (marked.h); those that
// began with an empty one when all processes have ended, where has_no_other_children says that they can be
// told apart. All groups, and all that carry the variable, are killed as well when the launcher dies in
// whatever way.
class Launcher {
 public:
  explicit Launcher(LaunchOptions options);  // throws InvalidInput
  ~Launcher();

  // Runs all processes, and returns when all have ended. Once for each object, and one at a time in a
  // program.
  //
  // Output is written by whole lines, so that those of two ranks never mix; 64 KiB without a line's end are
  // written as a line. SIGINT, SIGTERM, SIGHUP and SIGQUIT (SIGHUP, SIGINT and SIGQUIT unless the program
  // ignores them) are sent on to all groups, which have the grace to end; a second SIGINT kills them. The
  // program's own handlers come back at the end.
  //
  // When the first failure is known, the other processes have consequence_delay to end by themselves, then
  // SIGTERM, then after the grace SIGKILL. It is the earliest seen; but codes that are mostly consequences
  // (timeout, peer lost, rendezvous) give way to fail() and to other codes that come within `patience`, and a
  // failed rank that fail() names to its own end within 100 ms.
  //
  // Throws InvalidInput where the program cannot be run ("cannot run './x': No such file or directory") or a
  // log not written; no process is left then, as when a callback throws.
  LaunchResult run();

  // Ends the job as if a process had failed, for a reason that the launcher cannot see: a rank that is
  // silent, another machine. The text is the failure's. From any thread, before or while run(); the first
  // failure counts, later ones change nothing.
  void fail(Rank rank, const std::string& text, ErrorKind kind = ErrorKind::peer_lost);

 private:
  LaunchOptions options_;
  std::unique_ptr<FailureReports> reports_;
};

}  // namespace cp::runtime
