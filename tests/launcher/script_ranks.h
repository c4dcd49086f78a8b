// Runs shell scripts as ranks, in this process or under a launcher of their own that a test may signal and
// kill.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "runtime/launcher/launcher.h"

namespace cp::testing {

// Every process gets RANK (and what the test adds); "/bin/sh -c script"; little patience, since tests are
// many.
runtime::LaunchOptions shell(const std::string& script, int nproc);

struct Launched {
  runtime::LaunchResult result;
  std::string out, err;
};
Launched launch(runtime::LaunchOptions options);
inline Launched launch(const std::string& script, int nproc) { return launch(shell(script, nproc)); }

std::vector<std::string> lines_of(const std::string& text);  // sorted

// A directory that is removed with the object.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string read(const std::string& name) const;                     // empty when there is none
  std::vector<pid_t> pids(const std::string& name) const;              // one a line
  bool await_lines(const std::string& name, std::size_t count) const;  // whether they came in time

 private:
  std::string path_;
};

// A launcher in a forked process, which ends with the result's code after it wrote the summary. The caller
// has one thread.
class LauncherProcess {
 public:
  explicit LauncherProcess(runtime::LaunchOptions options,
                           const std::function<void(runtime::Launcher&)>& while_running = {});
  ~LauncherProcess();  // kills it
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  void signal(int number) const;
  std::vector<pid_t> children(const std::string& name) const;  // that call themselves so, once there are some
  int wait();                                                  // its exit code, 128 + n for signal n
  std::string output() const { return scratch_.read("output"); }  // of the ranks, and the summary

 private:
  Scratch scratch_;
  pid_t pid_ = -1;
};

bool alive(pid_t pid);                                    // and not a zombie
bool eventually(const std::function<bool()>& condition);  // within ten seconds, since machines are busy
bool all_end(const std::vector<pid_t>& pids);             // the same

}  // namespace cp::testing
