#include "runtime/launcher/spawn.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <string_view>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

// All that the child needs. It is made before the fork, because after it only system calls are safe.
struct Child {
  std::vector<char*> argv, environment;
  pid_t launcher;
  int failed;  // the pipe into which the child writes errno if something goes wrong
};

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged(const std::vector<std::string>& additions) {
  std::set<std::string_view> added;
  for (const std::string& variable : additions) {
    CP_INVARIANT(variable.find('=') != std::string::npos, "'", variable, "' is not NAME=value");
    added.insert(name_of(variable));
  }
  std::vector<std::string> result = additions;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (!added.contains(name_of(*variable))) result.emplace_back(*variable);
  }
  return result;
}

[[noreturn]] void become(const Child& child, const SpawnRequest& request, const SignalScope& signals,
                         const Guardian& guardian) noexcept {
  setpgid(0, 0);
  guardian.guard(request.slot, getpid());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != child.launcher) _exit(1);  // the launcher died before the line above
  dup2(request.in, STDIN_FILENO);
  dup2(request.out, STDOUT_FILENO);
  dup2(request.err, STDERR_FILENO);
  close_from(STDERR_FILENO + 1, true);
  if (request.inherited >= 0) fcntl(request.inherited, F_SETFD, 0);
  signals.restore();
  execvpe(child.argv[0], child.argv.data(), child.environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(child.failed, &error, sizeof error);
  _exit(127);
}

// Returns the child's errno, or 0 if the program runs, since exec closes the pipe.
int wait_for_exec(int pipe) {
  int error = 0;
  ssize_t n = 0;
  do {
    n = read(pipe, &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  return n == sizeof error ? error : 0;
}

std::string cannot_run(const std::string& program, int error) {
  std::string text = str("cannot run '", program, "': ", std::strerror(error));
  if (error == ENOENT && program.find('/') == std::string::npos && access(program.c_str(), X_OK) == 0) {
    text += str(" in PATH; use './", program, "'");
  }
  return text;
}

}  // namespace

pid_t spawn(const SpawnRequest& request, const SignalScope& signals, const Guardian& guardian) {
  Pipe failed = make_pipe();
  const std::vector<std::string> environment = merged(request.environment);
  const Child child{pointers(request.argv), pointers(environment), getpid(), failed.write_end.get()};
  pid_t pid = -1;
  {
    const BlockedSignals blocked;
    pid = fork();
    if (pid == 0) become(child, request, signals, guardian);
  }
  if (pid < 0) {
    throw InvalidInput(str("cannot start process ", request.slot, ": ", std::strerror(errno),
                           "; the limit of processes (ulimit -u) may be too low"));
  }
  failed.write_end.reset();
  if (const int error = wait_for_exec(failed.read_end.get()); error != 0) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    guardian.guard(request.slot, 0);
    throw InvalidInput(cannot_run(request.argv.front(), error));
  }
  return pid;
}

}  // namespace cp::runtime
