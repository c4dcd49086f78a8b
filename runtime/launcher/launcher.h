// A Launcher runs a program once for each rank of this machine, and ends all of these processes together.
//
// It knows nothing about the rendezvous. What the rendezvous knows comes in through fail() and
// LaunchOptions::describe, and what the launcher finds out goes back through LaunchOptions::on_failure.
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

// The failure for which the job ended. Later failures are taken for its consequences.
struct ProcessFailure {
  Rank rank = -1;  // -1: no single rank
  std::string host;
  std::int64_t pid = 0;       // 0: not a process of this launcher
  std::optional<int> signal;  // the signal that killed it
  int exit_code = 0;          // the job's exit code; 128 + n for a process that signal n killed
  // "rank 2 on host h (pid 123) was killed by SIGKILL in all_gather #3 of cp[0,1], step 12",
  // "... ended with exit code 1: <last line of its stderr>", "... was stopped by SIGSTOP for 1 s", or the
  // text that fail() was given.
  std::string text;
  // The middle of the text, if this launcher saw the failure: "was killed by SIGKILL in all_gather #3 of
  // cp[0,1], step 12".
  std::string what = {};
};

struct LaunchOptions {
  std::vector<std::string> argv;  // the program, looked up in PATH as a shell does, and its arguments
  // Returns "NAME=value" texts for the process with this index on this machine. They are added to the
  // launcher's own environment, or replace its variables.
  std::function<std::vector<std::string>(int local_index)> environment = {};
  // Returns a descriptor above 2 that the process with this index keeps open, or none. It is called after
  // `environment`, which may tell the process its number. The launcher closes its copy once the process has
  // it.
  std::function<Descriptor(int local_index)> inherited = {};
  int nproc = 1;
  Rank first_rank = 0;  // process i is rank first_rank + i
  // The number of ranks on all machines; 0: only those here. Prefixes are as wide as the largest rank.
  Rank world_size = 0;
  // Whether process 0 reads the launcher's stdin, unless that is a terminal. All others read /dev/null.
  bool stdin_to_first = false;

  // These times are chosen. consequence_delay: from a failure until the others get SIGTERM. They use it to
  // end by themselves, with their own messages. grace: from SIGTERM or a forwarded signal until SIGKILL, long
  // enough for a program to clean up. stopped_limit: a process that is stopped (SIGSTOP) for so long has
  // failed; 0: none has.
  std::chrono::milliseconds consequence_delay{200};
  std::chrono::milliseconds grace{5'000};
  std::chrono::milliseconds stopped_limit{0};

  // The folder for the raw output of each rank, in rank-3.out and rank-3.err. Empty: there are no such files.
  std::string log_dir;
  bool prefix = true;           // whether "[rank 3] " stands before each line
  std::ostream* out = nullptr;  // null: std::cout
  std::ostream* err = nullptr;  // null: std::cerr
  // A folder with files only, which is removed if the launcher is killed. If the launcher ends otherwise, the
  // folder's owner removes it. Empty: there is none.
  std::string temporary_folder = {};
  // Whether this program has no children but those of the launcher. Then every process that becomes its child
  // later, because its parent has died, was started by one of them.
  bool has_no_other_children = false;
  std::string host;  // the machine's name in texts; empty: its own name

  // Returns what a rank was doing, such as "in all_gather #3 of cp[0,1,2,3], step 12", or "" if nobody knows.
  // It is asked about the first rank that failed, when that has ended or was stopped.
  std::function<std::string(Rank)> describe = {};
  // Called when the first failure is known, before any other process is told to end.
  std::function<void(const ProcessFailure&)> on_failure = {};
  // Returns how long to wait for fail() to tell the cause, if a process ended with what is mostly a
  // consequence (timeout, peer lost, rendezvous). It is asked once, about the first such process. Not set:
  // half a second.
  std::function<std::chrono::milliseconds(Rank)> patience = {};
};

struct ProcessEnd {
  Rank rank = 0;
  std::int64_t pid = 0;
  int exit_code = 0;          // 128 + n for a process that signal n killed
  std::optional<int> signal;  // the signal that killed it
  std::chrono::steady_clock::time_point when;
};

struct LaunchResult {
  // 0 if all went well, that of the first failure, or 128 + n if signal n asked the launcher to end.
  int exit_code = 0;
  std::optional<ProcessFailure> first_failure;
  // SIGINT, SIGTERM, SIGHUP or SIGQUIT, if the launcher got it before any failure.
  std::optional<int> interrupted_by;
  int stopped = 0;  // the number of processes, except the first that failed, that did not end with 0
  std::vector<ProcessEnd> ends;  // by rank
};

// "rank 2 on host h (pid 123) was killed by SIGKILL; 3 other ranks were stopped because of it"; empty for
// success.
std::string summary(const LaunchResult& result);

// Each process leads a process group of its own, and whatever it starts ends with it:
//   - What is left of a group when its first process has ended gets SIGTERM, and SIGKILL after the grace.
//   - The same holds for descendants that have started a group or a session of their own. They are found by a
//     variable of their environment (marked.h).
//   - Descendants that began with an empty environment are ended when all processes have ended, if
//     has_no_other_children says that they can be told from others.
// If the launcher itself dies, in whatever way, all groups and all processes with the variable are killed.
class Launcher {
 public:
  explicit Launcher(LaunchOptions options);  // throws InvalidInput for options that cannot be
  ~Launcher();

  // Runs all processes, and returns when all have ended. Call it once for each object, and only one at a time
  // in a program.
  //
  // Output is written by whole lines, so that lines of two ranks never mix. 64 KiB without a line's end are
  // written as a line.
  //
  // SIGINT, SIGTERM, SIGHUP and SIGQUIT are sent on to all groups, which then have the grace to end. A second
  // SIGINT kills them. SIGHUP, SIGINT and SIGQUIT stay ignored if the program ignores them. At the end the
  // program's own handlers come back.
  //
  // When the first failure is known, the other processes have consequence_delay to end by themselves. Then
  // they get SIGTERM, and SIGKILL after the grace. The first failure is the earliest that was seen, with two
  // exceptions: codes that are mostly consequences (timeout, peer lost, rendezvous) give way to fail() and to
  // other codes that come within `patience`; and what fail() says of a rank gives way to the end of this
  // rank's process, if that comes within 100 ms (cause.h).
  //
  // Throws InvalidInput if the program cannot be run ("cannot run './x': No such file or directory") or a log
  // cannot be written. No process is left then, nor if a callback throws.
  LaunchResult run();

  // Ends the job as if a process had failed, for a reason that the launcher cannot see, such as a silent rank
  // or another machine. `text` becomes the failure's text. Any thread may call this, before or during run().
  // Only the first failure counts.
  void fail(Rank rank, const std::string& text, ErrorKind kind = ErrorKind::peer_lost);

 private:
  LaunchOptions options_;
  std::unique_ptr<FailureReports> reports_;
};

}  // namespace cp::runtime
