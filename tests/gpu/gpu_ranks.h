// Ranks with a GPU each, for tests: threads of this process on the emulated GPUs, processes on real ones,
// which share a GPU where there are fewer than ranks.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/nccl/nccl_device.h"
#include "shared/base/types.h"
#include "tests/runtime/processes.h"

namespace cp::testing {

// Why nothing can run here; empty where there is a GPU. This process does not touch it, so that it can still
// fork.
std::string why_no_gpu();

// What plans for them are made for, known without touching them.
const Target& target_of_the_gpus();

// What that many ranks say that find nothing wrong.
inline const std::vector<std::string> kNothing1(1), kNothing2(2);

// For a test's first line.
#define CP_REQUIRE_GPU() \
  if (const std::string why = ::cp::testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why

// Where the ranks of one job find one another.
class GpuJob {
 public:
  explicit GpuJob(int world_size);

  // With a GPU, a way to share ids and to agree, and what ranks of one GPU need; every `timeout` is that of
  // tests. Where the environment says
  // CP_SLOW_STEPS=SEED, random steps are delayed (slow_steps.h).
  runtime::NcclOptions options(Rank rank) const;
  // The same, where all ranks prepare together: groups are split from the world's communicator.
  runtime::NcclOptions splitting_options(Rank rank) const;
  int world_size() const { return world_size_; }

 private:
  int world_size_;
  TemporaryDirectory directory_;
};

// Makes the rank's GPU the thread's, for threads that go on with a device that another one made.
void use_gpu(Rank rank);

// In a process of a rank, before it has a device: tells NCCL, or not, that the rank may share its GPU, as
// cprun --allow-shared-gpu does.
void share_gpu(Rank rank);
void share_no_gpu();

// In a process of a rank, before it has a device: what it needs where several ranks have one GPU.
void become_rank(Rank rank, int world_size);

// Calls body(rank) once for each rank, at the same time. Returns what went wrong, by rank: the text that the
// body returned or the message of its exception; empty when nothing did.
std::vector<std::string> run_gpu_ranks(int count, const std::function<std::string(Rank)>& body);

}  // namespace cp::testing
