#include "cli/common/progress_line.h"

#include <cmath>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "sim/base/number_text.h"

namespace cp::cli {
namespace {

// Both are chosen: a command that ends within a second needs no progress line, and five updates a second look
// like motion but cost nothing.
constexpr std::chrono::milliseconds kDelay{1000}, kPeriod{200};
// Chosen: it shows in a log that the command lives, without filling the log.
constexpr std::chrono::milliseconds kLogPeriod{30'000};
constexpr char kWipe[] = "\r\x1b[K";  // ECMA-48: back to the first column, erase to the end of the line

}  // namespace

Progress::Progress(bool logs) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal || logs)
    thread_ = std::thread([this, terminal] { terminal ? draw_until_stopped() : log_until_stopped(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Progress::show(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::draw_until_stopped() {
  std::unique_lock lock(mutex_);
  const auto stopped = [this] { return stopped_; };
  if (wake_.wait_for(lock, kDelay, stopped)) return;
  do {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    fmt::print(stderr, "{}{} ({})", kWipe, what_, sim::human_seconds(std::round(elapsed.count())));
    std::fflush(stderr);
  } while (!wake_.wait_for(lock, kPeriod, stopped));
  fmt::print(stderr, kWipe);
  std::fflush(stderr);
}

void Progress::log_until_stopped() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLogPeriod, [this] { return stopped_; })) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    fmt::print(stderr, "cpsim: {} ({})\n", what_, sim::human_seconds(std::round(elapsed.count())));
    std::fflush(stderr);
  }
}

}  // namespace cp::cli
