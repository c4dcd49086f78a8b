#include "runtime/launcher/run.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "runtime/launcher/exit_code.h"
#include "runtime/launcher/marked.h"
#include "runtime/launcher/spawn.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

// How long a killed group is waited for. Chosen: SIGKILL ends a group at once, unless one of its processes
// waits for a device that does not answer.
constexpr std::chrono::seconds kKilledGroupEnds{2};
// How often the loop looks whether processes that were told to end are gone. Nothing wakes it for those that
// are not its children. Chosen: nobody notices 20 ms, and 50 looks a second cost little.
constexpr std::chrono::milliseconds kLookAgain{20};

std::string prefix_of(const LaunchOptions& options, Rank rank) {
  if (!options.prefix) return "";
  const Rank largest = std::max(options.world_size, options.first_rank + options.nproc) - 1;
  const std::string number = str(rank);
  return str("[rank ", std::string(str(largest).size() - number.size(), ' '), number, "] ");
}

std::string log_of(const LaunchOptions& options, Rank rank, const char* stream) {
  return options.log_dir.empty() ? "" : str(options.log_dir, "/rank-", rank, stream);
}

bool read_by_child(int fd) { return fcntl(fd, F_GETFD) >= 0 && isatty(fd) == 0; }

}  // namespace

FailureReports::FailureReports() : wake_(make_pipe()) {
  fcntl(wake_.read_end.get(), F_SETFL, O_NONBLOCK);
  fcntl(wake_.write_end.get(), F_SETFL, O_NONBLOCK);
}

void FailureReports::add(Suspect report) {
  const std::lock_guard lock(mutex_);
  reports_.push_back(std::move(report));
  [[maybe_unused]] const ssize_t written = write(wake_.write_end.get(), "", 1);
}

std::vector<Suspect> FailureReports::take() {
  const std::lock_guard lock(mutex_);
  char bytes[64];
  while (read(fd(), bytes, sizeof bytes) > 0) {
  }
  return std::exchange(reports_, {});
}

Subreaper::Subreaper() {
  prctl(PR_GET_CHILD_SUBREAPER, &before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }

LauncherRun::LauncherRun(const LaunchOptions& options, FailureReports& reports)
    : options_(options),
      reports_(reports),
      mark_(make_mark()),
      guardian_(options.nproc, mark_, options.temporary_folder),
      out_(*options.out),
      err_(*options.err) {}

LauncherRun::~LauncherRun() {
  for (const Process& process : processes_) {
    if (!process.group_ended) kill(-static_cast<pid_t>(process.end.pid), SIGKILL);
  }
  each_marked(mark_.c_str(), [](pid_t pid, int) { kill(pid, SIGKILL); });
  for (const Process& process : processes_) {
    if (process.gone) continue;
    while (waitpid(-static_cast<pid_t>(process.end.pid), nullptr, 0) > 0 || errno == EINTR) {
    }
  }
}

// Reports and ends get different passes. So a report that was there before the look at the processes counts
// as earlier than an end which this look finds.
LaunchResult LauncherRun::finish() {
  start_all();
  while (true) {
    const Time now = Clock::now();
    take_signals(now);
    ++pass_;
    take_reports(now);
    ++pass_;
    reap(now);
    keep_deadlines(now);
    const bool undecided = !suspects_.empty() && !first_failure_;
    if (all_gone() && !undecided) break;
    wait(now);
  }
  return result();
}

void LauncherRun::start_all() {
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    if (error) throw InvalidInput(str("cannot make '", options_.log_dir, "': ", error.message()));
  }
  const Descriptor null_device = open_file("/dev/null", O_RDONLY);
  processes_.reserve(static_cast<std::size_t>(options_.nproc));
  for (int i = 0; i < options_.nproc; ++i) start(i, null_device.get());
}

void LauncherRun::start(int index, int null_device) {
  const Rank rank = options_.first_rank + index;
  const std::string prefix = prefix_of(options_, rank);
  Process process{.end = {.rank = rank, .pid = 0, .exit_code = 0, .signal = {}, .when = {}},
                  .out = RankOutput(prefix, out_, log_of(options_, rank, ".out")),
                  .err = RankOutput(prefix, err_, log_of(options_, rank, ".err")),
                  .last_words = {},
                  .stopped_since = {},
                  .kill_at = {},
                  .give_up_at = {}};
  const Descriptor out = process.out.take_write_end(), err = process.err.take_write_end();
  const bool own_stdin = index == 0 && options_.stdin_to_first && read_by_child(STDIN_FILENO);
  std::vector<std::string> environment =
      options_.environment ? options_.environment(index) : std::vector<std::string>();
  environment.push_back(str(mark_, index));
  const Descriptor inherited = options_.inherited ? options_.inherited(index) : Descriptor();
  process.end.pid = spawn({.argv = options_.argv,
                           .environment = std::move(environment),
                           .slot = index,
                           .in = own_stdin ? STDIN_FILENO : null_device,
                           .out = out.get(),
                           .err = err.get(),
                           .inherited = inherited.get()},
                          signals_, guardian_);
  processes_.push_back(std::move(process));
}

// Waits until something happens, and reads what the processes wrote.
void LauncherRun::wait(Time now) {
  polled_.clear();
  polled_.push_back({signals_.fd(), POLLIN, 0});
  polled_.push_back({reports_.fd(), POLLIN, 0});
  for (const Process& process : processes_) {
    polled_.push_back({process.out.fd_to_poll(), POLLIN, 0});  // poll() ignores -1
    polled_.push_back({process.err.fd_to_poll(), POLLIN, 0});
  }
  for (const LineSink* sink : {&out_, &err_})
    polled_.push_back({sink->waiting() ? sink->fd() : -1, POLLOUT, 0});
  int timeout_ms = -1;
  if (const Time deadline = next_deadline(); deadline != Time::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));  // fits into an int
  }
  if (poll(polled_.data(), polled_.size(), timeout_ms) <= 0) return;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (polled_[2 + 2 * i].revents != 0) processes_[i].out.read_some();
    if (polled_[3 + 2 * i].revents != 0) processes_[i].err.read_some();
  }
  out_.flush(), err_.flush();
}

// Waits until the reader has taken all output; after a signal no longer than the grace.
void LauncherRun::flush_outputs() {
  std::optional<Time> give_up_at;
  while (out_.waiting() || err_.waiting()) {
    const Time now = Clock::now();
    if (!signals_.take().empty() || interrupted_by_) {
      if (!give_up_at) give_up_at = now + options_.grace;
    }
    if (give_up_at && now >= *give_up_at) return;
    pollfd ready[] = {{signals_.fd(), POLLIN, 0},
                      {out_.waiting() ? out_.fd() : -1, POLLOUT, 0},
                      {err_.waiting() ? err_.fd() : -1, POLLOUT, 0}};
    const auto left =
        give_up_at ? std::chrono::ceil<std::chrono::milliseconds>(*give_up_at - now).count() : -1;
    poll(ready, std::size(ready), static_cast<int>(left));
    out_.flush(), err_.flush();
  }
}

LauncherRun::Time LauncherRun::next_deadline() const {
  Time next = Time::max();
  if (!suspects_.empty() && !first_failure_) next = suspects_deadline();
  if ((phase_ == Phase::failed && first_failure_) || phase_ == Phase::stopping)
    next = std::min(next, phase_ends_);
  for (const Process& process : processes_) {
    if (process.gone) continue;
    if (process.stopped_since && phase_ == Phase::running)
      next = std::min(next, *process.stopped_since + options_.stopped_limit);
    if (process.ended && (process.group_ended || !process.strays.empty())) next = std::min(next, look_at_);
    const std::optional<Time>& own = process.give_up_at ? process.give_up_at : process.kill_at;
    if (own) next = std::min(next, *own);
  }
  return next;
}

bool LauncherRun::all_gone() const {
  return std::all_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.gone; });
}

void LauncherRun::take_signals(Time now) {
  for (const int signal : signals_.take()) {
    switch (phase_) {
      case Phase::running:
        interrupted_by_ = signal;
        [[fallthrough]];
      case Phase::failed:
        stop_all(signal, now);
        break;
      case Phase::stopping:
        if (signal == SIGINT) {
          kill_all();
        } else {
          signal_all(signal);
        }
        break;
      case Phase::killing:
        break;
    }
  }
}

void LauncherRun::take_reports(Time now) {
  for (Suspect& report : reports_.take()) {
    report.pass = pass_;
    suspect(std::move(report), now);
  }
}

void LauncherRun::reap(Time now) {
  for (Process& process : processes_) {
    if (!process.ended) reap_process(process, now);
    if (!process.ended && options_.stopped_limit.count() > 0) look_for_stop(process, now);
    if (process.ended && !process.gone) reap_group(process);
  }
  look_for_strays(now);
  for (Process& process : processes_) {
    if (process.ended && !process.gone) settle(process, now);
  }
}

void LauncherRun::reap_process(Process& process, Time now) {
  const auto pid = static_cast<pid_t>(process.end.pid);
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return;
  }
  // Its last line is read now, before the processes that it started write how they were ended.
  process.err.drain();
  process.last_words = process.err.last_line();
  // The group is told to end before waitpid() frees the process id: afterwards it could be another group's.
  kill(-pid, phase_ == Phase::killing ? SIGKILL : SIGTERM);
  kill(-pid, SIGCONT);
  process.kill_at = now + options_.grace;
  waitpid(pid, nullptr, 0);
  process.ended = true;
  process.end.when = now;
  if (info.si_code == CLD_EXITED) {
    process.end.exit_code = info.si_status;
  } else {
    process.end.signal = info.si_status;
    process.end.exit_code = exit_code_of_signal(info.si_status);
  }
  if (process.end.exit_code != 0) {
    suspect({.rank = process.end.rank,
             .signal = process.end.signal,
             .exit_code = process.end.exit_code,
             .report = {},
             .pass = pass_},
            now);
  }
}

// SIGCHLD comes for stops, too. WNOWAIT leaves the news there, so that each look sees that the process is
// still stopped.
void LauncherRun::look_for_stop(Process& process, Time now) {
  siginfo_t info = {};
  const auto pid = static_cast<id_t>(process.end.pid);
  if (waitid(P_PID, pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    process.stopped_since.reset();
    return;
  }
  if (!process.stopped_since) process.stopped_since = now;
  if (phase_ != Phase::running || now < *process.stopped_since + options_.stopped_limit) return;
  const auto seconds = static_cast<double>(options_.stopped_limit.count()) / 1000;
  const std::string what =
      with_where(process, str("was stopped by ", signal_name(info.si_status), " for ", seconds, " s"));
  suspect({.rank = process.end.rank,
           .signal = {},
           .exit_code = exit_code(ErrorKind::peer_lost),
           .report = about(process, what),
           .pass = pass_,
           .what = what},
          now);
}

void LauncherRun::reap_group(Process& process) {
  const auto pid = static_cast<pid_t>(process.end.pid);
  while (waitpid(-pid, nullptr, WNOHANG) > 0) {
  }
  for (const pid_t stray : process.strays) waitpid(stray, nullptr, WNOHANG);
  if (process.group_ended) return;  // by now its number may be another group's
  process.group_ended = kill(-pid, 0) != 0 && errno == ESRCH;
  if (process.group_ended) guardian_.guard(static_cast<int>(&process - processes_.data()), 0);
}

// A look at all processes of the machine takes long if there are many. So one look serves all processes that
// have ended, and looks take at most a fifth of the time (chosen).
void LauncherRun::look_for_strays(Time now) {
  const auto waits = [](const Process& p) { return p.ended && !p.gone; };
  if (now < look_at_ || std::none_of(processes_.begin(), processes_.end(), waits)) return;
  for (Process& process : processes_) {
    if (waits(process)) process.has_strays = !process.group_ended;  // which may start one yet
  }
  bool found = false;
  each_marked(mark_.c_str(), [&](pid_t pid, int index) {
    if (static_cast<std::size_t>(index) >= processes_.size()) return;
    Process& process = processes_[static_cast<std::size_t>(index)];
    if (!waits(process) || getpgid(pid) == static_cast<pid_t>(process.end.pid)) return;
    end_stray(process, pid, now);
    found = true;
  });
  const bool all_ended =
      std::all_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.ended; });
  if (all_ended && options_.has_no_other_children) {
    Process& last = *std::find_if(processes_.begin(), processes_.end(), waits);
    each_child([&](pid_t pid) {
      const auto owns = [pid](const Process& p) {
        return !p.gone && getpgid(pid) == static_cast<pid_t>(p.end.pid);
      };
      if (pid == guardian_.pid() || std::any_of(processes_.begin(), processes_.end(), owns)) return;
      end_stray(last, pid, now);
      found = true;
    });
  }
  const Time end = Clock::now();
  look_at_ = end + std::max<Clock::duration>(4 * (end - now), found ? kLookAgain : Clock::duration::zero());
}

void LauncherRun::end_stray(Process& process, pid_t pid, Time now) {
  process.has_strays = true;
  const bool is_new = std::find(process.strays.begin(), process.strays.end(), pid) == process.strays.end();
  if (is_new) process.strays.push_back(pid);
  if (!is_new && !is_over(process, now)) return;
  kill(pid, is_over(process, now) ? SIGKILL : SIGTERM);
  kill(pid, SIGCONT);
}

bool LauncherRun::is_over(const Process& process, Time now) const {
  return phase_ == Phase::killing || now >= process.kill_at;
}

void LauncherRun::settle(Process& process, Time now) {
  const bool is_left = !process.group_ended || process.has_strays;
  if (is_left && !process.give_up_at && is_over(process, now)) {
    if (!process.group_ended) kill(-static_cast<pid_t>(process.end.pid), SIGKILL);
    process.give_up_at = now + kKilledGroupEnds;
  }
  if (!is_left || (process.give_up_at && now >= *process.give_up_at)) process.gone = true;
}

void LauncherRun::keep_deadlines(Time now) {
  if (!suspects_.empty() && !first_failure_ && now >= suspects_deadline()) decide(now);
  if (phase_ == Phase::failed && first_failure_ && now >= phase_ends_) stop_all(SIGTERM, now);
  if (phase_ == Phase::stopping && now >= phase_ends_) kill_all();
}

// Failures after the cause was named, or after the processes were told to end, are consequences and do not
// count.
void LauncherRun::suspect(Suspect suspect, Time now) {
  if (first_failure_ || phase_ == Phase::stopping || phase_ == Phase::killing) return;
  if (!patience_ && options_.patience && mostly_consequence(suspect))
    patience_ = options_.patience(suspect.rank);
  suspects_.add(std::move(suspect), now);
  phase_ = Phase::failed;
}

// on_failure tells others before any process is told to end. So processes that end then count as consequences
// on every machine.
void LauncherRun::decide(Time now) {
  phase_ends_ = now + options_.consequence_delay;
  first_failure_ = failure_of(suspects_.cause());
  if (options_.on_failure) options_.on_failure(*first_failure_);
}

ProcessFailure LauncherRun::failure_of(const Suspect& cause) const {
  ProcessFailure failure{.rank = cause.rank,
                         .host = {},
                         .pid = 0,
                         .signal = cause.signal,
                         .exit_code = cause.exit_code,
                         .text = cause.report.value_or("")};
  const int index = cause.rank - options_.first_rank;
  if (index < 0 || index >= options_.nproc) return failure;
  const Process& process = processes_[static_cast<std::size_t>(index)];
  failure.host = options_.host;
  failure.pid = process.end.pid;
  failure.what = cause.what;
  if (cause.report) return failure;
  failure.what = with_where(process, end_text(cause));
  failure.text = about(process, failure.what);
  if ((!cause.signal || cause.signal == SIGABRT) && !process.last_words.empty()) {
    failure.text += ": " + process.last_words;
  }
  return failure;
}

std::string LauncherRun::with_where(const Process& process, const std::string& what) const {
  const std::string where = options_.describe ? options_.describe(process.end.rank) : "";
  return str(what, where.empty() ? "" : " ", where);
}

std::string LauncherRun::about(const Process& process, const std::string& what) const {
  return str("rank ", process.end.rank, " on host ", options_.host, " (pid ", process.end.pid, ") ", what);
}

void LauncherRun::signal_all(int signal) {
  for (const Process& process : processes_) {
    if (process.group_ended) continue;
    kill(-static_cast<pid_t>(process.end.pid), signal);
    kill(-static_cast<pid_t>(process.end.pid), SIGCONT);  // a stopped process takes no other signal
  }
}

void LauncherRun::stop_all(int signal, Time now) {
  phase_ = Phase::stopping;
  phase_ends_ = now + options_.grace;
  signal_all(signal);
}

void LauncherRun::kill_all() {
  phase_ = Phase::killing;
  for (Process& process : processes_) {
    if (!process.group_ended) kill(-static_cast<pid_t>(process.end.pid), SIGKILL);
  }
  look_at_ = {};
}

LaunchResult LauncherRun::result() {
  LaunchResult result;
  result.first_failure = first_failure_;
  result.interrupted_by = interrupted_by_;
  for (Process& process : processes_) {
    process.out.finish();
    process.err.finish();
    result.ends.push_back(process.end);
    const bool is_cause = first_failure_ && first_failure_->rank == process.end.rank;
    if (process.end.exit_code != 0 && !is_cause) ++result.stopped;
  }
  flush_outputs();
  if (first_failure_) {
    result.exit_code = first_failure_->exit_code;
  } else if (interrupted_by_) {
    result.exit_code = exit_code_of_signal(*interrupted_by_);
  }
  return result;
}

}  // namespace cp::runtime
