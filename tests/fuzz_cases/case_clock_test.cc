// When a case has taken too long.
#include "sim/fuzz/case_clock.h"

#include <chrono>
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace cp::sim {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A process that does this again and again, until the test has ended.
class Process {
 public:
  template <class Body>
  explicit Process(const Body& body) : id_(fork()) {
    if (id_ != 0) return;
    for (;;) body();
  }
  ~Process() {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  pid_t id() const { return id_; }

 private:
  pid_t id_;
};

void work(milliseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

Clock::duration until_over(CaseClock& clock) {
  const auto begin = Clock::now();
  while (!clock.is_over()) std::this_thread::sleep_for(milliseconds(20));
  return Clock::now() - begin;
}

TEST(CaseClock, OneThatWorksIsOverWhenItHasWorkedForTheLimit) {
  const Process process([] { work(milliseconds(1)); });
  CaseClock clock(process.id(), seconds(1));
  EXPECT_GE(until_over(clock), milliseconds(900));  // of the other clock
}

TEST(CaseClock, OneThatStandsStillIsOver) {
  const Process process([] { pause(); });
  CaseClock clock(process.id(), seconds(1));
  EXPECT_GE(until_over(clock), milliseconds(900));
}

// As on a busy machine: it works one part in twenty.
TEST(CaseClock, OneThatGetsLittleTimeIsNot) {
  const Process process([] {
    work(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(19));
  });
  CaseClock clock(process.id(), seconds(2));
  const auto end = Clock::now() + seconds(3);
  while (Clock::now() < end) {
    ASSERT_FALSE(clock.is_over());
    std::this_thread::sleep_for(milliseconds(20));
  }
}

TEST(CaseClock, EachCaseBeginsAnew) {
  const Process process([] { work(milliseconds(1)); });
  CaseClock clock(process.id(), seconds(1));
  until_over(clock);
  clock.begin();
  EXPECT_FALSE(clock.is_over());
}

}  // namespace
}  // namespace cp::sim
