#include "runtime/launcher/signals.h"

#include <array>
#include <atomic>
#include <cerrno>

#include <pthread.h>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

std::atomic<int> wake_fd{-1};
std::array<std::atomic<int>, kEnding.size()> pending{};
static_assert(std::atomic<int>::is_always_lock_free);

void collect(int signal) {
  const int saved = errno;
  for (std::size_t i = 0; i < kEnding.size(); ++i) {
    if (kEnding[i] == signal) ++pending[i];
  }
  // The write may fail because the pipe is full; a full pipe wakes its reader as well.
  [[maybe_unused]] const ssize_t written = write(wake_fd, "", 1);
  errno = saved;
}

bool stays_ignored(int signal) {
  struct sigaction now = {};
  sigaction(signal, nullptr, &now);
  return signal != SIGTERM && signal != SIGCHLD && now.sa_handler == SIG_IGN;
}

}  // namespace

SignalScope::SignalScope() : pipe_(make_pipe()) {
  int none = -1;
  CP_INVARIANT(wake_fd.compare_exchange_strong(none, pipe_.write_end.get()), "two launchers run at once");
  fcntl(pipe_.read_end.get(), F_SETFL, O_NONBLOCK);
  fcntl(pipe_.write_end.get(), F_SETFL, O_NONBLOCK);
  for (std::atomic<int>& count : pending) count = 0;

  struct sigaction action = {};
  sigfillset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigset_t wanted;
  sigemptyset(&wanted);
  const auto install = [&](int signal, void (*handler)(int)) {
    action.sa_handler = handler;
    sigaction(signal, &action, &before_[signal]);
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) {
    if (stays_ignored(signal)) continue;
    install(signal, collect);
    sigaddset(&wanted, signal);
  }
  install(SIGPIPE, SIG_IGN);
  pthread_sigmask(SIG_UNBLOCK, &wanted, &mask_before_);
}

SignalScope::~SignalScope() {
  for (const auto& [signal, action] : before_) sigaction(signal, &action, nullptr);
  wake_fd = -1;
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void SignalScope::restore() const noexcept {
  for (const auto& [signal, action] : before_) sigaction(signal, &action, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::vector<int> SignalScope::take() {
  char bytes[256];
  while (read(fd(), bytes, sizeof bytes) > 0) {
  }
  std::vector<int> came;
  for (std::size_t i = 0; i < kEnding.size(); ++i) {
    came.insert(came.end(), static_cast<std::size_t>(pending[i].exchange(0)), kEnding[i]);
  }
  return came;
}

BlockedSignals::BlockedSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

BlockedSignals::~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace cp::runtime
