// Plans of redistributions depend on their inputs alone.
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/redistribute/lower.h"
#include "tests/property/redistribute_cases.h"
#include "tests/support/any_case.h"
#include "tests/support/layout_generators.h"

namespace cp::testing {
namespace {

// Of everything that a plan is, of the planner's figures, and of the smaller half of the Pareto set's.
std::string digests_of_seed(std::uint64_t seed) {
  const RedistributeCase request = case_of_seed(seed, {.tight = false, .max_ranks = 8});
  Hasher hasher;
  const Redistribution planned = plan_of(request);
  hasher.add(planned.inputs).add(planned.time_us).add(planned.peak_bytes);
  for (const Plan& plan : lower_all(planned)) hasher.add(digest(plan));
  for (const Redistribution& choice :
       pareto_redistributions(request.source, request.target, request.options)) {
    hasher.add(choice.time_us).add(choice.peak_bytes);
  }
  return to_string(hasher.digest());
}

constexpr std::uint64_t kDigestSeeds = 60;

// Run by the test below in a process of its own, in another order: nothing may depend on what was planned
// before.
TEST(RedistributeDigests, DISABLED_PrintInReverseOrder) {
  for (std::uint64_t seed = kDigestSeeds; seed-- > 0;)
    std::printf("digest %d %s\n", static_cast<int>(seed), digests_of_seed(seed).c_str());
}

TEST(RedistributeDigests, AreEqualInAnotherProcess) {
  std::array<char, 4096> self{};
  ASSERT_GT(readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  const std::string command = str("'", self.data(),
                                  "' --gtest_also_run_disabled_tests "
                                  "--gtest_filter=RedistributeDigests.DISABLED_PrintInReverseOrder");
  const std::unique_ptr<FILE, int (*)(FILE*)> other(popen(command.c_str(), "r"), pclose);
  ASSERT_NE(other, nullptr);
  std::map<int, std::string> theirs;
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), line.size(), other.get()) != nullptr) {
    int seed = 0;
    std::array<char, 256> text{};
    if (std::sscanf(line.data(), "digest %d %255s", &seed, text.data()) == 2) theirs[seed] = text.data();
  }
  ASSERT_EQ(theirs.size(), kDigestSeeds);
  std::map<std::string, int> distinct;
  for (std::uint64_t seed = 0; seed < kDigestSeeds; ++seed) {
    const std::string ours = digests_of_seed(seed);
    EXPECT_EQ(ours, theirs[static_cast<int>(seed)]) << "seed " << seed;
    ++distinct[ours];
  }
  EXPECT_EQ(distinct.size(), kDigestSeeds);
}

RC_GTEST_PROP(RedistributeProperty, EqualInputsGiveEqualPlans, ()) {
  const RedistributeCase request = *any_case({.tight = false});
  const Redistribution first = plan_of(request), second = plan_of(request);
  RC_ASSERT(first.inputs == second.inputs);
  RC_ASSERT(lower_all(first) == lower_all(second));
  // And other inputs other digests.
  RedistributeCase changed = request;
  changed.options.cost.network_gbps += 1;
  RC_ASSERT(!(plan_of(changed).inputs == first.inputs));
}

}  // namespace
}  // namespace cp::testing
