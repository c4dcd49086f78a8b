// Collectives and copies of more than 2^31 bytes and elements' offsets beyond them, on the GPU: counts are of
// 64 bits everywhere. Nothing large goes through the host: what is written and read there are small windows.
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/session.h"
#include "tests/gpu/gpu_ranks.h"

namespace cp {
namespace {

using runtime::NcclDevice;

#ifdef CP_GPU_EMULATED
// The host has no memory for more; the test itself is tried.
constexpr std::int64_t kLargeNumel = (std::int64_t{1} << 10) + 6;
#else
constexpr std::int64_t kLargeNumel = (std::int64_t{1} << 29) + 6;  // of i32: 2^31 + 24 bytes
#endif
constexpr int kLargeRanks = 2;
constexpr std::int64_t kWindow = 4;
constexpr std::int64_t kPlanBytes = 4 * kLargeNumel * 4;  // two buffers of two blocks

// In a block: at its begin, in its middle (2^30 bytes), at 2^31 bytes, and at its end. What lies beside them
// is looked at, too.
constexpr std::array<std::int64_t, 4> kWindows = {0, (kLargeNumel - 6) / 2, kLargeNumel - 6 - kWindow,
                                                  kLargeNumel - kWindow};
std::vector<std::int64_t> places() {
  std::vector<std::int64_t> all(kWindows.begin(), kWindows.end());
  for (const std::int64_t window : kWindows)
    all.push_back(window + kWindow < kLargeNumel - kWindow ? window + kWindow : window - kWindow);
  return all;
}

// Of a rank's block, before anything moves.
std::int32_t value(Rank rank, std::int64_t place) {
  for (std::size_t i = 0; i < kWindows.size(); ++i) {
    if (place >= kWindows[i] && place < kWindows[i] + kWindow)
      return static_cast<std::int32_t>(100 * (i + 1)) + rank;
  }
  return rank + 1;
}

struct LargePlan {
  Plan plan;
  std::vector<std::int32_t> expected;  // of the output
};

// Both ranks' blocks are gathered, copied, summed, exchanged; windows of each result go to the output.
LargePlan large_plan(Rank self) {
  const Rank other = 1 - self;
  LargePlan made;
  PlanBuilder b(self, host_target());
  const StreamId main = b.stream("main");
  const GroupId group = b.group("all", {0, 1});
  const BufferId x = b.temporary("x", DType::i32, 2 * kLargeNumel),
                 y = b.temporary("y", DType::i32, 2 * kLargeNumel);
  constexpr std::int64_t kLooks = 4;  // at a block
  const auto seen_numel = static_cast<std::int64_t>(places().size()) * kWindow * kLooks;
  const BufferId seen = b.output("seen", DType::i32, seen_numel);
  const auto block = [](BufferId buffer, std::int64_t index) {
    return flat_view(buffer, index * kLargeNumel, kLargeNumel);
  };
  std::int64_t next = 0;
  const auto look = [&](BufferId buffer, std::int64_t index, const auto& expected) {
    for (const std::int64_t place : places()) {
      b.add(main,
            Copy{flat_view(buffer, index * kLargeNumel + place, kWindow), flat_view(seen, next, kWindow)});
      next += kWindow;
      for (std::int64_t i = 0; i < kWindow; ++i) made.expected.push_back(expected(place + i));
    }
  };
  b.add(main, Fill{block(x, self), static_cast<double>(self + 1)});
  for (const std::int64_t window : kWindows)
    b.add(main,
          Fill{flat_view(x, self * kLargeNumel + window, kWindow), static_cast<double>(value(self, window))});
  b.add(main, AllGather{group, block(x, self), flat_view(x, 0, 2 * kLargeNumel)});
  b.add(main, Copy{flat_view(x, 0, 2 * kLargeNumel), flat_view(y, 0, 2 * kLargeNumel)});
  for (const Rank rank : {0, 1}) look(y, rank, [=](std::int64_t place) { return value(rank, place); });
  // The own block and the other's: each sum is of both.
  b.add(main, Copy{block(x, self), block(y, 0)});
  b.add(main, AllReduce{group, ReduceOp::sum, block(y, 0), block(y, 0)});
  look(y, 0, [](std::int64_t place) { return value(0, place) + value(1, place); });
  b.add(main, Fill{block(y, 1), -1});
  b.add(main, Exchange{.group = group,
                       .sends = {{other, block(x, self)}},
                       .recvs = {{other, block(y, 1)}},
                       .counts = counts_digest({{0, 1, kLargeNumel}, {1, 0, kLargeNumel}})});
  look(y, 1, [=](std::int64_t place) { return value(other, place); });
  made.plan = std::move(b).build({});
  return made;
}

std::string run_large(const testing::GpuJob& job, Rank rank) {
  NcclDevice device(job.options(rank));
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return "cudaMemGetInfo failed";
  // Both may be on this GPU, and NCCL has buffers of its own. Neither may go on without the other.
  constexpr std::size_t kOfLibraries = std::size_t{2} << 30;
  if (total < kLargeRanks * static_cast<std::size_t>(kPlanBytes) + kOfLibraries)
    return str("lacks memory: ", total, " bytes");
  const LargePlan large = large_plan(rank);
  PlanSession session(device, large.plan);
  session.run();
  const std::vector<std::byte> bytes = session.download(session.outputs().front());
  std::vector<std::int32_t> seen(bytes.size() / 4);
  std::memcpy(seen.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < large.expected.size(); ++i) {
    if (i >= seen.size() || seen[i] != large.expected[i])
      return str("element ", i, " of ", seen.size(), " is ", i < seen.size() ? seen[i] : 0, ", not ",
                 large.expected[i]);
  }
  return seen.size() == large.expected.size() ? "" : str(seen.size(), " elements");
}

TEST(NcclLarge, MoreThanTwoGibibytesMoveRight) {
  CP_REQUIRE_GPU();
  const testing::GpuJob job(kLargeRanks);
  const std::vector<std::string> said =
      testing::run_gpu_ranks(kLargeRanks, [&](Rank rank) { return run_large(job, rank); });
  for (const std::string& rank : said) {
    if (rank.starts_with("lacks memory"))
      GTEST_SKIP() << rank << " where two ranks take " << kLargeRanks * kPlanBytes << " of one GPU";
  }
  EXPECT_EQ(said, testing::kNothing2);
}

}  // namespace
}  // namespace cp
