#include "runtime/launcher/guardian.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <utility>
#include <vector>

#include <linux/close_range.h>

#include "runtime/launcher/folders.h"
#include "runtime/launcher/marked.h"
#include "runtime/launcher/signals.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

struct Message {
  int slot;
  pid_t group;
};

// Sleeps 20 ms (chosen). Only system calls are allowed here, since other threads of the launcher may have
// held any lock at the fork.
void nap() noexcept {
  const timespec time{.tv_sec = 0, .tv_nsec = 20'000'000};
  nanosleep(&time, nullptr);
}

// Kills until no process is found any more, because a process that is killed may have started another one
// meanwhile.
void kill_marked(const char* mark) noexcept {
  // 250 rounds of 20 ms are five seconds. A process that waits for a device which does not answer cannot be
  // killed, so there must be an end (chosen).
  constexpr int kMostRounds = 250;
  for (int round = 0; round < kMostRounds; ++round) {
    bool found = false;
    each_marked(mark, [&](pid_t pid, int) {
      kill(pid, SIGKILL);
      found = true;
    });
    if (!found) return;
    nap();
  }
}

[[noreturn]] void guard_until_launcher_dies(int pipe, pid_t* groups, std::size_t slots, const char* mark,
                                            const char* folder) noexcept {
  setsid();
  prctl(PR_SET_NAME, "cprun-guardian");
  dup2(pipe, STDIN_FILENO);
  close_from(STDOUT_FILENO, false);
  Message message;
  while (true) {
    // A message is far smaller than PIPE_BUF, so it is written, and read, as a whole (pipe(7)).
    const ssize_t n = read(STDIN_FILENO, &message, sizeof message);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof message) break;
    if (static_cast<std::size_t>(message.slot) < slots) groups[message.slot] = message.group;
  }
  for (std::size_t slot = 0; slot < slots; ++slot) {
    if (groups[slot] > 0) kill(-groups[slot], SIGKILL);
  }
  kill_marked(mark);
  if (*folder != '\0') remove_flat_folder(folder);
  _exit(0);
}

}  // namespace

Guardian::Guardian(int slots, std::string mark, std::string folder)
    : mark_(std::move(mark)), folder_(std::move(folder)), pipe_(make_pipe()) {
  std::vector<pid_t> groups(static_cast<std::size_t>(slots), 0);
  const BlockedSignals blocked;  // the guardian keeps them blocked for ever
  pid_ = fork();
  if (pid_ == 0) {
    guard_until_launcher_dies(pipe_.read_end.get(), groups.data(), groups.size(), mark_.c_str(),
                              folder_.c_str());
  }
  if (pid_ < 0) throw InvalidInput(str("cannot start a process: ", std::strerror(errno)));
  pipe_.read_end.reset();
}

Guardian::~Guardian() {
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::guard(int slot, pid_t group) const noexcept {
  const Message message{slot, group};
  [[maybe_unused]] const ssize_t written = write(pipe_.write_end.get(), &message, sizeof message);
}

void close_from(int first, bool on_exec) noexcept {
  if (close_range(static_cast<unsigned>(first), ~0U, on_exec ? CLOSE_RANGE_CLOEXEC : 0) == 0) return;
  const long limit = sysconf(_SC_OPEN_MAX);  // kernels before 5.11 do not know CLOSE_RANGE_CLOEXEC
  for (int fd = first; fd < limit; ++fd) {
    if (on_exec) {
      fcntl(fd, F_SETFD, FD_CLOEXEC);
    } else {
      close(fd);
    }
  }
}

}  // namespace cp::runtime
