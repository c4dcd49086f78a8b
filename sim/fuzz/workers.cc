#include "sim/fuzz/workers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/error.h"
#include "sim/fuzz/case_clock.h"
#include "sim/fuzz/isolated.h"
#include "sim/fuzz/judge_messages.h"

namespace cp::sim {
namespace {

using Clock = std::chrono::steady_clock;

// What a worker does right now, in memory that both processes see: read when it has ended without a word, or
// ends no more.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> number{0}, done{0};
  std::atomic<std::int64_t> since_ns{
      0};  // of the steady clock, which all processes of a machine share; 0: between two cases
};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

struct Worker {
  pid_t process = -1;
  int messages = -1, errors = -1;  // ends to read
  CaseClock clock;
  std::int64_t watched_since_ns = 0;  // the case that the clock is about
  std::string received, error_text;
};

class Work {
 public:
  Work(const WorkOptions& options, const std::function<bool(const WorkStatus&)>& go_on)
      : options_(options), go_on_(go_on), jobs_(static_cast<std::uint64_t>(std::max(1, options.jobs))) {
    void* memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw InvalidInput(
          str("there is no memory for the workers: ", std::strerror(errno), "; use fewer --jobs"));
    slots_ = new (memory) Slot[jobs_];
  }
  ~Work() {
    for (Worker& worker : workers_) end(worker);
    munmap(slots_, bytes());
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  WorkResult run() {
    for (std::uint64_t w = 0; w < jobs_; ++w) start(w);
    auto next_word = Clock::now();
    while (!failure_ && std::any_of(workers_.begin(), workers_.end(),
                                    [](const Worker& worker) { return worker.process > 0; })) {
      read_some();
      find_endless();
      if (Clock::now() < next_word) continue;
      next_word = Clock::now() + std::chrono::milliseconds(200);
      if (!go_on_({cases()})) break;
    }
    WorkResult result{cases(), std::move(failure_)};
    return result;
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(jobs_) * sizeof(Slot); }
  std::uint64_t cases() const {
    std::uint64_t total = 0;
    for (std::uint64_t w = 0; w < jobs_; ++w) total += slots_[w].done.load();
    return total;
  }

  void start(std::uint64_t w) {
    std::array<int, 2> messages{}, errors{};
    if (pipe(messages.data()) != 0 || pipe(errors.data()) != 0)
      throw InvalidInput(str("a pipe could not be made: ", std::strerror(errno), "; use fewer --jobs"));
    const pid_t process = fork();
    if (process < 0)
      throw InvalidInput(str("a process could not be started: ", std::strerror(errno), "; use fewer --jobs"));
    if (process == 0) {
      close(messages[0]);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::signal(SIGINT, SIG_IGN);  // of the terminal: the first process ends the others
      std::signal(SIGTERM, SIG_DFL);
      dup2(errors[1], STDERR_FILENO);
      judge_share(w, messages[1]);
      _exit(0);
    }
    close(messages[1]);
    close(errors[1]);
    workers_.push_back({process, messages[0], errors[0], {process, options_.case_limit}, 0, {}, {}});
  }

  // In the worker.
  void judge_share(std::uint64_t w, int messages) {
    Slot& slot = slots_[w];
    Coverage seen = options_.coverage != nullptr ? *options_.coverage : Coverage();
    for (std::uint64_t number = w; number < options_.end; number += jobs_) {
      slot.number.store(number);
      slot.since_ns.store(now_ns());
      try {
        const proto::FuzzCase fuzz_case = options_.make(number);
        Judgement judgement = judge(fuzz_case);
        if (!judgement.finding && options_.twice_each > 0 && number / jobs_ % options_.twice_each == 0)
          judge_again(fuzz_case, judgement);
        slot.since_ns.store(0);
        slot.done.fetch_add(1);
        if (judgement.finding) return write_message(messages, {MessageKind::judged, number, judgement});
        if (options_.coverage != nullptr && seen.add(fuzz_case) > 0)
          write_message(messages, {MessageKind::new_cells, number});
      } catch (const InvalidInput& refusal) {
        return write_message(messages, {MessageKind::no_case, number, {}, refusal.what()});
      }
    }
  }

  static void judge_again(const proto::FuzzCase& fuzz_case, Judgement& first) {
    const Judgement second = judge(fuzz_case);
    if (second.digest == first.digest) return;
    first.finding.emplace();
    first.finding->set_property("determinism");
    first.finding->set_message(str("judged twice, the case has the digests ", to_string(first.digest),
                                   " and ", to_string(second.digest)));
  }

  // In the first process, from here on.
  void read_some() {
    std::vector<pollfd> ends;
    for (const Worker& worker : workers_) {
      ends.push_back({worker.messages, POLLIN, 0});
      ends.push_back({worker.errors, POLLIN, 0});
    }
    if (poll(ends.data(), ends.size(), 100) <= 0) return;
    std::array<char, 65536> bytes{};
    for (std::size_t i = 0; i < ends.size(); ++i) {
      Worker& worker = workers_[i / 2];
      int& end = i % 2 == 0 ? worker.messages : worker.errors;
      if (end < 0 || (ends[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      const ssize_t count = read(end, bytes.data(), bytes.size());
      if (count > 0) {
        (i % 2 == 0 ? worker.received : worker.error_text)
            .append(bytes.data(), static_cast<std::size_t>(count));
      } else {
        close(std::exchange(end, -1));
      }
    }
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      while (const auto message = take_message(workers_[w].received)) hear(*message);
      if (workers_[w].process > 0 && workers_[w].messages < 0 && workers_[w].errors < 0) reap(w);
    }
  }

  void hear(const JudgeMessage& message) {
    if (message.kind == MessageKind::new_cells) {
      options_.on_new_cells(message.number);
    } else if (message.kind == MessageKind::no_case) {
      if (!options_.may_be_none) throw InvalidInput(str("case ", message.number, ": ", message.text));
      proto::Finding finding;
      finding.set_property("drawn case");
      finding.set_message(message.text);
      failure_ = WorkFailure{message.number, finding};
    } else if (!failure_ || message.number < failure_->number) {
      failure_ = WorkFailure{message.number, *message.judgement.finding};
    }
  }

  // It has closed its ends: at the end of its share, after a finding, or because it has crashed.
  void reap(std::size_t w) {
    int status = 0;
    while (waitpid(workers_[w].process, &status, 0) < 0 && errno == EINTR) {
    }
    workers_[w].process = -1;
    if (status != 0 && !failure_)
      failure_ = WorkFailure{slots_[w].number.load(), crash_finding(status, workers_[w].error_text)};
  }

  void find_endless() {
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      Worker& worker = workers_[w];
      const std::int64_t since = slots_[w].since_ns.load();
      if (since != std::exchange(worker.watched_since_ns, since)) worker.clock.begin();
      if (worker.process > 0 && since != 0 && worker.clock.is_over() && !failure_)
        failure_ = WorkFailure{slots_[w].number.load(), time_finding(options_.case_limit)};
    }
  }

  static void end(Worker& worker) {
    if (worker.process > 0) {
      kill(worker.process, SIGKILL);
      while (waitpid(worker.process, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    for (const int end : {worker.messages, worker.errors}) {
      if (end >= 0) close(end);
    }
  }

  const WorkOptions& options_;
  const std::function<bool(const WorkStatus&)>& go_on_;
  const std::uint64_t jobs_;
  Slot* slots_ = nullptr;
  std::vector<Worker> workers_;
  std::optional<WorkFailure> failure_;
};

}  // namespace

WorkResult run_workers(const WorkOptions& options, const std::function<bool(const WorkStatus&)>& go_on) {
  if (options.end == 0) return {};
  return Work(options, go_on).run();
}

}  // namespace cp::sim
