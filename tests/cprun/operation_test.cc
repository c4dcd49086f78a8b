// What a rank was doing when it died is what the launcher says, to the number.
#include <csignal>
#include <cstdint>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using cli::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// As counting_rank.cc keeps them.
struct Counts {
  std::int64_t pid = 0, begun = 0, ended = 0;
};

Counts counts_in(const std::string& path) {
  Counts counts;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&counts), sizeof counts);
  return counts;
}

// Ranks that count what they do.
class Counting {
 public:
  explicit Counting(std::vector<std::string> settings, const std::vector<std::string>& flags = {}) {
    settings.push_back("TRUTH=" + folder_.file(""));
    std::vector<std::string> argv = {built("cprun"), "--nproc-per-node", "3", "--timeout", "20"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), {"--", built("counting_rank")});
    program_.emplace(argv, settings);
  }

  Counts counts(int rank) const { return counts_in(folder_.file(str("rank-", rank))); }
  bool await_collectives(int rank, std::int64_t count) const {
    return within(60s, [&] { return counts(rank).ended >= count; });
  }
  pid_t pid(int rank) const { return static_cast<pid_t>(counts(rank).pid); }
  ProgramEnd finish() { return program_->finish(); }

  // What the launcher is to say, by what the rank counted.
  std::string truth(int rank) const {
    const Counts last = counts(rank);
    const std::int64_t number = last.begun - 1;
    const std::string what =
        str(number % 2 == 0 ? "all_reduce #" : "all_gather #", number, " of cp[0,1,2], step ", number % 2);
    return last.ended < last.begun ? str("in ", what) : str("after ", what, ", had ended");
  }

 private:
  TemporaryFolder folder_;
  std::optional<Program> program_;
};

TEST(CprunOperation, IsTheOneInWhichARankKillsItself) {
  for (const int number : {0, 1, 40, 1001}) {
    Counting job({str("KILL_AT=", number), "WHO=1", "PAUSE_US=0"});
    const ProgramEnd end = job.finish();
    EXPECT_EQ(end.exit_code, 128 + SIGKILL);
    EXPECT_EQ(job.counts(1).begun, number + 1);
    const std::string what = number % 2 == 0 ? "all_reduce #" : "all_gather #";
    EXPECT_THAT(end.err, HasSubstr(str(" (pid ", job.pid(1), ") was killed by SIGKILL in ", what, number,
                                       " of cp[0,1,2], step ", number % 2, "; 2 other ranks")));
  }
}

TEST(CprunOperation, ThatHasEndedIsNotTheOneInWhichARankDied) {
  Counting job({"KILL_AFTER=400", "WHO=2"});
  const ProgramEnd end = job.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_THAT(end.err, HasSubstr(str(" (pid ", job.pid(2),
                                     ") was killed by SIGKILL after all_gather #401 of cp[0,1,2], step 1, "
                                     "had ended; 2 other ranks")));
}

// At any moment, by somebody else; in a second of which no heartbeat told.
TEST(CprunOperation, IsRightWhenARankIsKilledFromOutside) {
  for (const int collectives : {50, 100, 200, 400}) {
    Counting job({});
    ASSERT_TRUE(job.await_collectives(0, collectives));
    kill(job.pid(0), SIGKILL);
    const ProgramEnd end = job.finish();
    EXPECT_EQ(end.exit_code, 128 + SIGKILL);
    EXPECT_THAT(end.err, HasSubstr(str(" (pid ", job.pid(0), ") was killed by SIGKILL ", job.truth(0), ";")));
  }
}

// The page is not there: a program in between has closed what it does not know.
TEST(CprunOperation, WithoutAPageIsWhatWasHeardLast) {
  const TemporaryFolder folder;
  const std::string script =
      "for fd in /proc/self/fd/*; do n=${fd##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; exec \"$@\"";
  Program program({built("cprun"), "--nproc-per-node", "2", "--timeout", "4", "--", "/bin/sh", "-c", script,
                   "sh", built("counting_rank")},
                  {"TRUTH=" + folder.file("")});
  const auto counts = [&] { return counts_in(folder.file("rank-1")); };
  ASSERT_TRUE(within(60s, [&] { return counts().ended > 10; }));
  sleep_for(3s);  // heartbeats each second
  kill(static_cast<pid_t>(counts().pid), SIGKILL);
  const ProgramEnd end = program.finish();
  EXPECT_THAT(end.err, AllOf(HasSubstr(") was killed by SIGKILL (last heard "), HasSubstr(" ago at all_"),
                             Not(HasSubstr("SIGKILL in"))));
}

}  // namespace
}  // namespace cp::testing
