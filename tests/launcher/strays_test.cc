// Descendants of ranks that have left their groups and sessions, and what else a launcher may leave.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/launcher/folders.h"
#include "runtime/launcher/marked.h"
#include "tests/launcher/script_ranks.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using runtime::LaunchOptions;
using ::testing::HasSubstr;

// A daemon: its parent ends at once, and it has a session of its own. It writes its pid to the file.
std::string daemon(const std::string& pids, const std::string& before = ":", const std::string& with = "") {
  return str("(setsid ", with, " sh -c '", before, "; echo $$ >> ", pids,
             "; while :; do sleep 0.02; done' &) ; ");
}

// Until so many daemons have written their pids.
std::string await(const std::string& file, int daemons = 1) {
  return str("while [ \"$(cat ", file, " 2>/dev/null | wc -l)\" -lt ", daemons, " ]; do sleep 0.01; done; ");
}

TEST(Strays, EndWithTheirRankAndNotWithAnother) {
  const Scratch scratch;
  const std::string go = scratch.path("go");
  LauncherProcess process(shell(
      str(daemon(scratch.path("of-$RANK")), daemon(scratch.path("of-$RANK")),
          await(scratch.path("of-$RANK"), 2), "while [ $RANK = 1 -a ! -e ", go, " ]; do sleep 0.02; done"),
      2));
  for (const char* name : {"of-0", "of-1"}) ASSERT_TRUE(scratch.await_lines(name, 2));
  EXPECT_TRUE(all_end(scratch.pids("of-0")));
  for (const pid_t pid : scratch.pids("of-1")) EXPECT_TRUE(alive(pid));
  std::ofstream{go};
  EXPECT_EQ(process.wait(), 0);
  for (const pid_t pid : scratch.pids("of-1")) EXPECT_FALSE(alive(pid));
}

TEST(Strays, HaveTheGrace) {
  const Scratch scratch;
  LaunchOptions options = shell(
      str(daemon(scratch.path("pids"), str("trap \"echo asked > ", scratch.path("asked"), "; exit\" TERM")),
          await(scratch.path("pids"))),
      1);
  options.grace = 600s;
  EXPECT_EQ(launch(options).result.exit_code, 0);
  EXPECT_EQ(scratch.read("asked"), "asked\n");
  EXPECT_FALSE(alive(scratch.pids("pids").at(0)));
}

TEST(Strays, AreKilledAfterIt) {
  const Scratch scratch;
  LaunchOptions options =
      shell(str(daemon(scratch.path("pids"), "trap \"\" TERM; { sleep 0.05; kill -STOP $$; } & true"),
                await(scratch.path("pids"))),
            2);
  options.grace = 100ms;
  EXPECT_EQ(launch(options).result.exit_code, 0);
  for (const pid_t pid : scratch.pids("pids")) EXPECT_FALSE(alive(pid));
}

// One that starts another instead of ending.
TEST(Strays, AreLookedForUntilThereAreNone) {
  const Scratch scratch;
  const std::string again =
      str("trap \"setsid sh -c \\\"sleep 100\\\" & echo \\$! >> ", scratch.path("second"), "; exit\" TERM");
  LaunchOptions options = shell(str(daemon(scratch.path("pids"), again), await(scratch.path("pids"))), 1);
  options.grace = 600s;
  EXPECT_EQ(launch(options).result.exit_code, 0);
  ASSERT_EQ(scratch.pids("second").size(), 1U);
  for (const char* name : {"pids", "second"})
    for (const pid_t pid : scratch.pids(name)) EXPECT_FALSE(alive(pid));
}

// They carry nothing by which they could be found, but that they are this program's children and no rank.
TEST(Strays, WithAnEmptyEnvironmentEndWithTheJobWhereTheLauncherHasNoOtherChildren) {
  for (const bool has_no_other_children : {true, false}) {
    const Scratch scratch;
    const pid_t other = fork();
    if (other == 0) {
      pause();
      _exit(0);
    }
    LaunchOptions options =
        shell(str(daemon(scratch.path("pids"), ":", "env -i PATH=$PATH"), await(scratch.path("pids"))), 2);
    options.has_no_other_children = has_no_other_children;
    if (has_no_other_children) {
      kill(other, SIGKILL);
      waitpid(other, nullptr, 0);
    }
    EXPECT_EQ(launch(options).result.exit_code, 0);
    for (const pid_t pid : scratch.pids("pids")) {
      EXPECT_EQ(alive(pid), !has_no_other_children);
      kill(pid, SIGKILL);
    }
    if (!has_no_other_children) {
      EXPECT_TRUE(alive(other));
      kill(other, SIGKILL);
      waitpid(other, nullptr, 0);
    }
  }
}

TEST(Strays, DoNotOutliveALauncherThatIsEnded) {
  for (const int number : {SIGTERM, SIGKILL}) {
    const Scratch scratch;
    LauncherProcess process(
        shell(str(daemon(scratch.path("pids")), daemon(scratch.path("pids"), "trap \"\" TERM INT HUP"),
                  "exec sleep 100"),
              2));
    ASSERT_TRUE(scratch.await_lines("pids", 4));
    process.signal(number);
    EXPECT_EQ(process.wait(), 128 + number);
    EXPECT_TRUE(all_end(scratch.pids("pids")));
  }
}

TEST(Strays, TheTemporaryFolderGoesWithAKilledLauncher) {
  const Scratch scratch;
  const std::string folder = scratch.path("folder");
  std::filesystem::create_directory(folder);
  LaunchOptions options =
      shell(str("echo $$ > ", folder, "/$RANK; echo $$ >> ", scratch.path("pids"), "; exec sleep 100"), 3);
  options.temporary_folder = folder;
  LauncherProcess process(options);
  ASSERT_TRUE(scratch.await_lines("pids", 3));
  process.signal(SIGKILL);
  process.wait();
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(folder); }));
}

// It may hold more entries than are read at once.
TEST(Folders, AFlatOneIsRemovedWithAllFiles) {
  const Scratch scratch;
  const std::string folder = scratch.path("folder");
  std::filesystem::create_directory(folder);
  for (int i = 0; i < 3000; ++i) std::ofstream(str(folder, "/rank-", i, ".cptrace")) << i;
  EXPECT_TRUE(runtime::remove_flat_folder(folder.c_str()));
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_TRUE(runtime::remove_flat_folder(folder.c_str())) << "it is gone";
}

TEST(Folders, NothingBehindALinkIsRemoved) {
  const Scratch scratch;
  std::filesystem::create_directory(scratch.path("other"));
  std::ofstream(scratch.path("other/thesis.txt")) << "of years";
  std::filesystem::create_directory(scratch.path("folder"));
  std::filesystem::create_symlink(scratch.path("other"), scratch.path("folder/link"));
  std::filesystem::create_symlink(scratch.path("other"), scratch.path("link"));
  EXPECT_FALSE(runtime::remove_flat_folder(scratch.path("link").c_str()));
  EXPECT_TRUE(runtime::remove_flat_folder(scratch.path("folder").c_str()));
  EXPECT_EQ(scratch.read("other/thesis.txt"), "of years");
}

// Wherever it stands in an environment, of whatever length; and what only looks like it is another's.
TEST(Marks, AreFoundAnywhere) {
  const std::string mark = runtime::make_mark();
  EXPECT_THAT(mark, ::testing::MatchesRegex("CPRUN_MARK=[0-9a-f]{16}-"));
  EXPECT_NE(mark, runtime::make_mark());
  const auto index_with = [&](const std::vector<std::string>& environment) {
    std::vector<char*> pointers;
    for (const std::string& variable : environment) pointers.push_back(const_cast<char*>(variable.c_str()));
    pointers.push_back(nullptr);
    int ready[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      const char* const argv[] = {"sleep", "100", nullptr};
      execve("/bin/sleep", const_cast<char**>(argv), pointers.data());
      _exit(1);
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 0);
    close(ready[0]);
    // execve() closes the pipe before the kernel has set up the new environment.
    const std::string environ = "/proc/" + std::to_string(pid) + "/environ";
    for (int wait = 0; wait < 30'000 && std::ifstream(environ).peek() == EOF; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    int found = -1;
    runtime::each_marked(mark.c_str(), [&](pid_t one, int index) {
      if (one == pid) found = index;
    });
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return found;
  };
  EXPECT_EQ(index_with({mark + "0"}), 0);
  EXPECT_EQ(index_with({"A=1", mark + "123", "B=2"}), 123);
  EXPECT_EQ(index_with({"A=1"}), -1);
  EXPECT_EQ(index_with({"A=" + mark + "1"}), -1);
  EXPECT_EQ(index_with({mark, mark + "x", mark + "1x", mark + "12345678901234"}), -1);
  for (std::size_t before = 8150; before < 8200; ++before)
    EXPECT_EQ(index_with({"A=" + std::string(before, 'x'), mark + "4567"}), 4567) << before;
}

}  // namespace
}  // namespace cp::testing
