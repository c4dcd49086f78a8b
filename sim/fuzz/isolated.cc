#include "sim/fuzz/isolated.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/fuzz/case_clock.h"
#include "sim/fuzz/judge_messages.h"

namespace cp::sim {
namespace {

[[noreturn]] void judge_and_exit(const proto::FuzzCase& fuzz_case, int results, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(errors, STDERR_FILENO);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  try {
    write_message(results, {MessageKind::judged, 0, judge(fuzz_case)});
  } catch (const InvalidInput& refusal) {
    write_message(results, {MessageKind::no_case, 0, {}, refusal.what()});
  }
  _exit(0);
}

// Reads both ends until they close, or the time is over.
bool read_until_closed(int results, int errors, CaseClock clock, const std::atomic<bool>* stop,
                       std::string& result, std::string& error) {
  std::array<pollfd, 2> ends = {{{results, POLLIN, 0}, {errors, POLLIN, 0}}};
  std::array<char, 4096> bytes{};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (clock.is_over() || (stop != nullptr && stop->load())) return false;
    if (poll(ends.data(), ends.size(), 50) < 0 && errno != EINTR) return false;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].fd < 0 || (ends[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      const ssize_t count = read(ends[i].fd, bytes.data(), bytes.size());
      if (count <= 0) {
        ends[i].fd = -1;
        continue;
      }
      (i == 0 ? result : error).append(bytes.data(), static_cast<std::size_t>(count));
    }
  }
  return true;
}

}  // namespace

proto::Finding crash_finding(int wait_status, const std::string& error_text) {
  proto::Finding finding;
  finding.set_property("crash");
  const std::string how = WIFSIGNALED(wait_status) ? str("signal ", strsignal(WTERMSIG(wait_status)))
                                                   : str("exit code ", WEXITSTATUS(wait_status));
  // The last characters of the error text that are shown. Chosen: an abort's message and a few lines before
  // it.
  constexpr std::size_t kShown = 600;
  finding.set_message(str("the process ended by ", how, error_text.empty() ? "" : ": ",
                          error_text.substr(error_text.size() > kShown ? error_text.size() - kShown : 0)));
  return finding;
}

proto::Finding time_finding(std::chrono::seconds limit) {
  proto::Finding finding;
  finding.set_property("time");
  finding.set_message(
      str("the case did not end in ", limit.count(), " s of work, or stood still for so long"));
  return finding;
}

std::optional<IsolatedJudgement> judge_isolated(const proto::FuzzCase& fuzz_case, std::chrono::seconds limit,
                                                const std::atomic<bool>* stop) {
  std::array<int, 2> results{}, errors{};
  if (pipe(results.data()) != 0 || pipe(errors.data()) != 0)
    throw InvalidInput(str("a pipe could not be made: ", std::strerror(errno), "; use fewer --jobs"));
  const pid_t child = fork();
  if (child < 0)
    throw InvalidInput(str("a process could not be started: ", std::strerror(errno), "; use fewer --jobs"));
  if (child == 0) judge_and_exit(fuzz_case, results[1], errors[1]);
  close(results[1]);
  close(errors[1]);
  std::string result, error;
  const bool ended = read_until_closed(results[0], errors[0], CaseClock(child, limit), stop, result, error);
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  close(results[0]);
  close(errors[0]);
  if (!ended && stop != nullptr && stop->load()) return std::nullopt;
  IsolatedJudgement isolated;
  if (!ended) {
    isolated.judgement.finding = time_finding(limit);
  } else if (const auto message = take_message(result)) {
    isolated.is_case = message->kind != MessageKind::no_case;
    isolated.refusal = message->text;
    isolated.judgement = message->judgement;
  } else {
    isolated.judgement.finding = crash_finding(status, error);
  }
  return isolated;
}

}  // namespace cp::sim
