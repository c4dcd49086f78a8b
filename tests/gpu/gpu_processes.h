// Ranks that are processes, on emulated GPUs too: for what belongs to a process, as its environment and its
// memory of a GPU do.
//
//   TEST_F(GpuProcesses, ...) { CP_EXPECT_RIGHT(run_two_ranks()); }
//   int run_two_ranks() { return run_gpu_processes(2, [](Rank rank) { ...; return wrong; }); }
#pragma once

#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/types.h"

namespace cp::testing {

// Skips where there is no GPU.
class GpuProcesses : public ::testing::Test {
 protected:
  void SetUp() override;
};

// Calls body(rank) in a process for each rank, at the same time. Returns 0 where none says what went wrong;
// else 1, and says it on stderr. For a process that has used no emulated GPU: that of CP_EXPECT_RIGHT.
int run_gpu_processes(int count, const std::function<std::string(Rank)>& body);

// Which of the words a message has not; empty where it has all.
std::string lacks(const std::string& message, const std::vector<std::string>& words);

// Evaluates the expression, which is to be 0, in a process of its own.
#define CP_EXPECT_RIGHT(status) EXPECT_EXIT(_exit(status), ::testing::ExitedWithCode(0), "")

}  // namespace cp::testing
