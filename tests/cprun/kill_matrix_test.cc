// Whatever happens to a rank or to the launcher, wherever it is: the right one is named, the exit code is
// right, and nothing is left.
#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cprun/faulty_job.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;

const std::vector<std::string> kPlaces = {"before_rendezvous", "in_rendezvous", "in_collective",
                                          "between_steps", "at_exit"};

// Mostly they wait, so four at a time; what was wrong, in words.
std::vector<std::string> run_all(const std::vector<std::function<std::string()>>& cases) {
  std::vector<std::string> wrong;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < cases.size(); i = next++) {
      const std::string report = cases[i]();
      const std::lock_guard lock(mutex);
      if (!report.empty()) wrong.push_back(report);
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  threads.clear();
  return wrong;
}

struct Fault {
  std::string name;
  int exit_code;
  std::string words;  // after "rank 1 on host h (pid 7) "
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

// As faulty_rank.cc loops: six AllReduces, of which number 3 is the place within, and number 2 comes after
// the place between.
std::string where_in(const std::string& place) {
  const auto reduce = [](int number) { return str("all_reduce #", number, " of cp[0,1,2], step 0"); };
  if (place == "in_collective") return "in " + reduce(3);
  if (place == "between_steps") return str("after ", reduce(1), ", had ended");
  if (place == "at_exit") return str("after ", reduce(5), ", had ended");
  return "before its first collective";
}

std::string run_rank_case(const Fault& fault, const std::string& place, int rank) {
  FaultyJob job(fault.name, place, str(rank));
  job.finish();
  job.check_code(fault.exit_code);
  job.check_says(str("cprun: rank ", rank, " on host "));
  job.check_says(str(" (pid ", job.fault_pid(), ") ", fault.words, " ", where_in(place)));
  job.check_one_cause();
  return job.report();
}

class KillMatrix : public ::testing::TestWithParam<Fault> {};

TEST_P(KillMatrix, OfRanks) {
  std::vector<std::function<std::string()>> cases;
  for (const std::string& place : kPlaces) {
    for (int rank = 0; rank < kFaultyRanks; ++rank)
      cases.emplace_back([=] { return run_rank_case(GetParam(), place, rank); });
  }
  EXPECT_THAT(run_all(cases), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    , KillMatrix,
    ::testing::Values(Fault{"kill", 128 + SIGKILL, "was killed by SIGKILL"},
                      Fault{"stop", 13, str("was stopped by SIGSTOP for ", kTimeout.count() / 2, " s")},
                      Fault{"terminate", 128 + SIGTERM, "was killed by SIGTERM"},
                      Fault{"exit", 1, "ended with exit code 1"},
                      Fault{"segfault", 128 + SIGSEGV, "was killed by SIGSEGV"}),
    [](const auto& fault) { return fault.param.name; });

std::string terminate_launcher(const std::string& place) {
  FaultyJob job("terminate", place, "launcher");
  job.finish();
  job.check_code(128 + SIGTERM);
  job.check_says("cprun: stopped by SIGTERM\n");
  job.check_one_cause();
  return job.report();
}

std::string kill_launcher(const std::string& place) {
  FaultyJob job("kill", place, "launcher");
  job.finish();
  job.check_code(128 + SIGKILL);
  return job.report();
}

// For less than the timeout, by far: nobody is lost.
std::string stop_launcher(const std::string& place) {
  FaultyJob job("stop", place, "launcher");
  job.wait_for_fault();
  sleep_for(1s);
  job.program().signal(SIGCONT);
  job.finish();
  job.check_code(0);
  return job.report();
}

// For longer: the ranks end by themselves, and it says so when it goes on.
std::string stop_launcher_for_long() {
  FaultyJob job("stop", "between_steps", "launcher", 100'000);
  job.wait_for_fault();
  const auto only_launcher = [&] { return job.program().processes().size() <= 2; };  // and its guardian
  constexpr auto kCauseAndLastWords = 3s;  // that a rank waits for a server which says nothing
  job.check(within(kTimeout + kCauseAndLastWords + kSlack, only_launcher), "ranks are left");
  job.program().signal(SIGCONT);
  job.finish(FaultyJob::Clock::now());
  job.check_code(13);
  job.check_says(": the rendezvous at 127.0.0.1:");
  return job.report();
}

TEST(KillMatrixOfTheLauncher, EndsAllOrGoesOn) {
  std::vector<std::function<std::string()>> cases;
  for (const std::string& place : kPlaces) {
    cases.emplace_back([=] { return terminate_launcher(place); });
    cases.emplace_back([=] { return kill_launcher(place); });
    cases.emplace_back([=] { return stop_launcher(place); });
  }
  cases.emplace_back(stop_launcher_for_long);
  EXPECT_THAT(run_all(cases), IsEmpty());
}

}  // namespace
}  // namespace cp::testing
