#include "tests/runtime/processes.h"

#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "shared/base/error.h"

namespace cp::testing {
namespace {

using Clock = std::chrono::steady_clock;

#ifdef __SANITIZE_THREAD__
// With that of the sanitizer, which it starts beside the first of the program's.
constexpr std::ptrdiff_t kOwnThreads = 2;
#else
constexpr std::ptrdiff_t kOwnThreads = 1;
#endif

struct Child {
  pid_t pid = -1;
  int pipe = -1;  // what it says before it ends
  std::string said;
};

std::ptrdiff_t number_of_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

// The number of threads when it has come to those of one's own, or the last one counted. A thread that was
// joined stands in the list until the kernel has taken it down, which on a busy machine is some time after
// the join.
std::ptrdiff_t threads_left(std::chrono::seconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  std::ptrdiff_t threads = number_of_threads();
  for (; threads > kOwnThreads && Clock::now() < deadline; threads = number_of_threads())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return threads;
}

[[noreturn]] void run_child(int pipe, const std::function<std::string(Rank)>& body, Rank rank) {
  std::string said;
  try {
    said = body(rank);
  } catch (const std::exception& error) {
    said = error.what();
  }
  for (std::size_t written = 0; written < said.size();) {
    const ssize_t n = write(pipe, said.data() + written, said.size() - written);
    if (n <= 0) break;
    written += static_cast<std::size_t>(n);
  }
  _exit(said.empty() ? 0 : 1);  // not exit(): the tests of this copy of the program do not end here
}

Child start(const std::function<std::string(Rank)>& body, Rank rank) {
  int ends[2];
  CP_INVARIANT(pipe(ends) == 0, "pipe");
  const pid_t pid = fork();
  CP_INVARIANT(pid >= 0, "fork");
  if (pid == 0) {
    close(ends[0]);
    run_child(ends[1], body, rank);
  }
  close(ends[1]);
  return {pid, ends[0], ""};
}

// Reads until the child has closed its end; false when it has not by then.
bool listen(Child& child, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wanted{child.pipe, POLLIN, 0};
    if (left.count() <= 0 || poll(&wanted, 1, static_cast<int>(left.count())) <= 0) return false;
    char text[4096];
    const ssize_t n = read(child.pipe, text, sizeof text);
    if (n <= 0) return true;
    child.said.append(text, static_cast<std::size_t>(n));
  }
}

std::string finish(Child& child, Clock::time_point deadline) {
  const bool in_time = listen(child, deadline);
  close(child.pipe);
  if (!in_time) kill(child.pid, SIGKILL);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (!in_time) return str("timed out ", child.said);
  if (WIFSIGNALED(status)) return str("killed by signal ", WTERMSIG(status), " ", child.said);
  const int code = WEXITSTATUS(status);  // a sanitizer's, where the body said nothing
  return child.said.empty() && code != 0 ? str("exit code ", code) : child.said;
}

}  // namespace

std::vector<std::string> run_processes(int count, const std::function<std::string(Rank)>& body,
                                       std::chrono::seconds timeout) {
  const std::ptrdiff_t threads = threads_left(std::chrono::seconds(10));
  CP_INVARIANT(threads <= kOwnThreads, threads,
               " threads at a fork; with OpenBLAS loaded, set OPENBLAS_NUM_THREADS=1");
  const Clock::time_point deadline = Clock::now() + timeout;
  std::vector<Child> children;
  for (Rank rank = 0; rank < count; ++rank) children.push_back(start(body, rank));
  std::vector<std::string> said;
  for (Child& child : children) said.push_back(finish(child, deadline));
  return said;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "cpsim_XXXXXX").string();
  CP_INVARIANT(mkdtemp(pattern.data()) != nullptr, pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace cp::testing
