// A step that reaches Gloo with one argument changed: comparing the traces finds it.
#ifdef CP_HAVE_GLOO
#include "runtime/gloo/gloo_device.h"
#endif

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/processes.h"
#include "tests/support/corrupted_steps.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(GlooCorruption, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

std::vector<std::string> missed_on_gloo(const std::vector<testing::Corruption>& corruptions) {
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(testing::kCorruptedRanks, [&](Rank rank) {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path()});
    return testing::lines_of_findings(corruptions, device);
  });
  return testing::missed(corruptions, said);
}

TEST(GlooCorruption, EachArgumentIsFound) {
  EXPECT_THAT(missed_on_gloo(testing::corrupted_arguments()), ::testing::IsEmpty());
}

TEST(GlooCorruption, OrderAndNumberAreFound) {
  EXPECT_THAT(missed_on_gloo(testing::corrupted_orders()), ::testing::IsEmpty());
}

TEST(GlooCorruption, OneRankIsFound) {
  EXPECT_THAT(missed_on_gloo(testing::corrupted_ranks()), ::testing::IsEmpty());
}

#endif

}  // namespace
}  // namespace cp
