#include "runtime/launcher/output.h"

#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/script_ranks.h"

namespace cp::testing {
namespace {

using runtime::LineCutter;
using ::testing::ElementsAre;

TEST(LineCutter, GivesWholeLinesAlone) {
  LineCutter cutter("> ");
  EXPECT_EQ(cutter.feed("one\ntw"), "> one\n");
  EXPECT_EQ(cutter.feed("o"), "");
  EXPECT_EQ(cutter.feed("\n\nthree"), "> two\n> \n");
  EXPECT_EQ(cutter.last_line(), "three");
  EXPECT_EQ(cutter.finish(), "> three\n");
  EXPECT_EQ(cutter.finish(), "");
  EXPECT_EQ(cutter.last_line(), "three");
}

TEST(LineCutter, LastLineIsTheLastWithText) {
  LineCutter cutter("");
  cutter.feed("reason\r\n  \n\n ");
  EXPECT_EQ(cutter.last_line(), "reason");
}

TEST(LineCutter, CutsLongLines) {
  const std::size_t longest = LineCutter::kLongestBytes;
  for (const std::size_t size : {longest - 1, longest, longest + 1, 3 * longest, 3 * longest + 1}) {
    for (const std::size_t piece : {std::size_t{1000}, longest, size + 1}) {
      LineCutter cutter("");
      const std::string line = std::string(size, 'x') + "\n";
      std::string text;
      for (std::size_t at = 0; at < line.size(); at += piece) text += cutter.feed(line.substr(at, piece));
      std::size_t ends = 0, begin = 0;
      for (std::size_t at = 0; (at = text.find('\n', begin)) != std::string::npos; begin = at + 1, ++ends) {
        EXPECT_LE(at - begin, longest);
        EXPECT_GT(at - begin, 0U) << size << " in pieces of " << piece;
      }
      EXPECT_EQ(ends, (size + longest - 1) / longest) << size << " in pieces of " << piece;
      EXPECT_EQ(text.size(), size + ends);
      EXPECT_EQ(begin, text.size());
    }
  }
}

TEST(LauncherOutput, EachLineSaysItsRank) {
  const Launched launched = launch("echo out; echo err >&2; echo; printf 'no end'", 2);
  EXPECT_THAT(lines_of(launched.out), ElementsAre("[rank 0] ", "[rank 0] no end", "[rank 0] out", "[rank 1] ",
                                                  "[rank 1] no end", "[rank 1] out"));
  EXPECT_EQ(launched.out.back(), '\n');
  EXPECT_THAT(lines_of(launched.err), ElementsAre("[rank 0] err", "[rank 1] err"));
}

TEST(LauncherOutput, PrefixesAreEquallyWide) {
  runtime::LaunchOptions options = shell("echo hi", 2);
  options.first_rank = 9;
  EXPECT_THAT(lines_of(launch(options).out), ElementsAre("[rank  9] hi", "[rank 10] hi"));
  options.world_size = 1000;
  EXPECT_THAT(lines_of(launch(options).out), ElementsAre("[rank   9] hi", "[rank  10] hi"));
  options.prefix = false;
  EXPECT_EQ(launch(options).out, "hi\nhi\n");
}

TEST(LauncherOutput, KeepsBytesAsTheyAre) {
  runtime::LaunchOptions options = shell("printf 'a\\000b\\377\\r\\n\\200'", 1);
  options.prefix = false;
  EXPECT_EQ(launch(options).out, std::string("a\0b\377\r\n\200\n", 8));
}

TEST(LauncherOutput, LogsHoldWhatRanksWrote) {
  const Scratch scratch;
  runtime::LaunchOptions options = shell("printf \"out $RANK\\nrest\"; echo err >&2", 2);
  options.first_rank = 2;
  options.log_dir = scratch.path("a/b");
  launch(options);
  launch(options);  // overwrites
  EXPECT_EQ(scratch.read("a/b/rank-2.out"), "out 0\nrest");
  EXPECT_EQ(scratch.read("a/b/rank-3.out"), "out 1\nrest");
  EXPECT_EQ(scratch.read("a/b/rank-3.err"), "err\n");
}

TEST(LauncherOutput, SaysWhereALogCannotBe) {
  runtime::LaunchOptions options = shell("echo never", 2);
  options.log_dir = "/dev/null/logs";
  try {
    launch(options);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_STREQ(error.what(), "cannot make '/dev/null/logs': Not a directory");
  }
}

// 10 MiB, in lines that say whose they are.
TEST(LauncherOutput, MuchOutputArrivesWhole) {
  const Scratch scratch;
  constexpr std::size_t kLines = 40'960, kLineBytes = 64;
  runtime::LaunchOptions options = shell(
      str("yes $RANK----------------------------------------------------------xyz | head -n ", kLines), 4);
  options.log_dir = scratch.path("logs");
  const Launched launched = launch(options);
  ASSERT_EQ(launched.result.exit_code, 0) << summary(launched.result);
  const std::vector<std::string> lines = lines_of(launched.out);
  ASSERT_EQ(lines.size(), 4 * kLines);
  const std::string rest = std::string(kLineBytes - 5, '-').substr(1) + "xyz";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t rank = i / kLines;
    ASSERT_EQ(lines[i], str("[rank ", rank, "] ", rank, rest)) << i;
  }
  EXPECT_EQ(std::filesystem::file_size(scratch.path("logs/rank-3.out")), kLines * (rest.size() + 2));
}

// Whoever reads the ranks' output need not read to the end.
TEST(LauncherOutput, GoesOnWhenNobodyReads) {
  std::ostringstream closed;
  closed.setstate(std::ios::badbit);
  runtime::LaunchOptions options = shell("yes | head -c 1000000; exit 3", 2);
  options.out = &closed;
  std::ostringstream err;
  options.err = &err;
  EXPECT_EQ(runtime::Launcher(options).run().exit_code, 3);
}

// Descriptors: nothing but 0-2 reaches the ranks, and nothing stays here.
TEST(LauncherOutput, NoDescriptorLeaks) {
  const auto mine = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  const int inherited = fcntl(STDERR_FILENO, F_DUPFD, 50);
  const auto before = mine();
  // The shell lists its own, without a descriptor of a listing program.
  const Launched launched =
      launch("for f in /proc/$$/fd/*; do echo ${f##*/}; done; readlink /proc/$$/fd/0", 1);
  EXPECT_THAT(lines_of(launched.out), ::testing::Contains("[rank 0] /dev/null"));
  for (const std::string& line : lines_of(launched.out)) {
    EXPECT_THAT(
        line, ::testing::AnyOf("[rank 0] 0", "[rank 0] 1", "[rank 0] 2", "[rank 0] 3", "[rank 0] /dev/null"));
  }
  EXPECT_EQ(mine(), before);
  close(inherited);
}

}  // namespace
}  // namespace cp::testing
