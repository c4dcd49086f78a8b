// What cannot be printed is a failure, whatever the command.
#include "cli/common/standard_output.h"

#include <array>
#include <cstdio>
#include <string>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp::cli {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int exit_code = -1;
  std::string err;
};

// With a standard output that takes nothing.
Ended on_a_full_disk(const std::string& command, const char* output = "/dev/full") {
  const std::string line = std::string("exec " CP_BIN_DIR "/") + command + " 2>&1 >" + output;
  std::FILE* pipe = popen(line.c_str(), "r");
  Ended ended;
  std::array<char, 4096> bytes{};
  for (std::size_t count = 1; count > 0;) {
    count = fread(bytes.data(), 1, bytes.size(), pipe);
    ended.err.append(bytes.data(), count);
  }
  const int status = pclose(pipe);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

TEST(StandardOutput, WhatCannotBeWrittenIsAFailure) {
  const std::string commands[] = {
      "cpsim --version",
      "cpsim help plan",
      "cpsim plan --model llama-3.1-8b --nodes 1 --seq-len 8K --global-batch 8 --explain tp=8",
      "cpsim estimate --cluster dgx-h100 --collective all_gather --bytes 1GiB",
      "cpsim redistribute --mesh dp=2 --shape 64x64 --from 'S(0)' --to R",
      "cpsim run --mesh cp=2 --strategy ring --seq-len 64 --q-heads 2",
      "cpsim validate nccl_tests_large --rows --json",
  };
  for (const std::string& command : commands) {
    const Ended ended = on_a_full_disk(command);
    EXPECT_EQ(ended.exit_code, 2) << command;
    EXPECT_THAT(ended.err, HasSubstr("cpsim: cannot write standard output: ")) << command;
  }
}

TEST(StandardOutput, AClosedOneIsToo) {
  const Ended ended = on_a_full_disk("cpsim --version", "&-");
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("cannot write standard output"));
}

// The code of what failed before says more.
TEST(StandardOutput, AFailureKeepsItsCode) {
  EXPECT_EQ(
      on_a_full_disk("cpsim plan --model llama-3.1-405b --nodes 1 --seq-len 8K --global-batch 8").exit_code,
      20);
}

}  // namespace
}  // namespace cp::cli
