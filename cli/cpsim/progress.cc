#include "cli/cpsim/progress.h"

#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "sim/present/units.h"

namespace cp::cli {
namespace {

constexpr std::chrono::milliseconds kDelay{1000}, kPeriod{200};
constexpr char kWipe[] = "\r\x1b[K";

}  // namespace

Progress::Progress() {
  if (isatty(STDERR_FILENO) != 0) thread_ = std::thread([this] { draw_until_stopped(); });
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
    fmt::print(stderr, "{}{} ({:.0f} s)", kWipe, what_, elapsed.count());
    std::fflush(stderr);
  } while (!wake_.wait_for(lock, kPeriod, stopped));
  fmt::print(stderr, kWipe);
  std::fflush(stderr);
}

}  // namespace cp::cli
