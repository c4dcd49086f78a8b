// The arena, the declared uses and the limits: for each rule a set of plans that keeps it, and one that
// breaks this rule alone.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/check.h"
#include "tests/plan/check_plans.h"

namespace cp::testing {
namespace {

TEST(CheckMemory, TemporariesLieInTheArena) {
  std::vector<Plan> plans = gather_plans();
  plans[2].arena_bytes = 15;
  expect_error<CheckFailure>(plans, {"rank 2: t at arena bytes [0, 16) leaves the arena of 15 bytes"});
  plans = gather_plans();
  plans[2].buffers[1].offset_bytes = 4;
  expect_error<CheckFailure>(plans, {"rank 2: t at arena bytes [4, 20) leaves the arena of 16 bytes"});
  plans[2].buffers[1].offset_bytes = -4;
  expect_error<CheckFailure>(plans, {"rank 2: t at arena bytes [-4, 12) leaves the arena of 16 bytes"});
}

TEST(CheckMemory, TemporariesAreAligned) {
  std::vector<Plan> plans = gather_plans();
  plans[2].buffers[1].offset_bytes = 2;
  plans[2].arena_bytes = 18;
  expect_error<CheckFailure>(
      plans, {"rank 2: t at arena bytes [2, 18) is not aligned to 4 bytes", "next place is 4"});
}

TEST(CheckMemory, UsesLieWithinTheDeclaredOnes) {
  std::vector<Plan> plans = gather_plans();
  plans[0].buffers[1].last_use = 0;
  expect_error<CheckFailure>(
      plans, {"rank 0: step 1 all_gather \"gather\" uses t, whose declared uses are steps 0 to 0"});
}

// x -> a -> b -> c -> y: a and c may share bytes, a and b may not.
std::vector<Plan> chain_plan(std::int64_t b_bytes, std::int64_t c_bytes, std::int64_t arena_bytes) {
  std::vector<Plan> plans = write_plans(1, [](Rank, PlanWriter& plan) {
    const BufferId x = plan.input("x", 4), a = plan.temporary("a", 4), b = plan.temporary("b", 4);
    const BufferId c = plan.temporary("c", 4), y = plan.output("y", 4);
    const std::vector<BufferId> chain = {x, a, b, c, y};
    for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
      plan.add(0, Copy{flat_view(chain[i], 0, 4), flat_view(chain[i + 1], 0, 4)});
    }
  });
  plans[0].buffers[2].offset_bytes = b_bytes;
  plans[0].buffers[3].offset_bytes = c_bytes;
  plans[0].arena_bytes = arena_bytes;
  return plans;
}

TEST(CheckMemory, BuffersShareBytesOnlyOneAfterTheOther) {
  expect_clean(chain_plan(16, 0, 32));
  expect_error<CheckFailure>(chain_plan(12, 32, 48),
                             {"rank 0: a at arena bytes [0, 16) (steps 0 to 1)",
                              "b at arena bytes [12, 28) (steps 1 to 2)", "share bytes"});
  // c shares bytes with a, which is no longer in use, and with b, which is.
  expect_error<CheckFailure>(chain_plan(16, 8, 32),
                             {"rank 0: c at arena bytes [8, 24) (steps 2 to 3)",
                              "b at arena bytes [16, 32) (steps 1 to 2)", "share bytes"});
}

TEST(CheckMemory, LimitsHold) {
  // The arena has 16 bytes, x 16 and y 48.
  expect_clean(gather_plans(), {.peak_bytes = 80, .arena_bytes = 16});
  expect_error<CheckFailure>(gather_plans(), {"rank 0: the arena has 16 bytes, more than the limit of 15"},
                             {.peak_bytes = {}, .arena_bytes = 15});
  expect_error<CheckFailure>(gather_plans(), {"rank 0: ", "make 80 bytes, more than the limit of 79"},
                             {.peak_bytes = 79, .arena_bytes = {}});
}

}  // namespace
}  // namespace cp::testing
