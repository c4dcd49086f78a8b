#include "shared/base/version.h"

#include <gtest/gtest.h>

#include "shared/base/text.h"

namespace cp {
namespace {

TEST(Version, TheTextAndTheNumberSayTheSame) {
  EXPECT_EQ(kVersion, str(CP_VERSION_MAJOR, ".", CP_VERSION_MINOR, ".", CP_VERSION_PATCH));
  EXPECT_EQ(CP_VERSION_NUMBER / 10000, CP_VERSION_MAJOR);
  EXPECT_EQ(CP_VERSION_NUMBER / 100 % 100, CP_VERSION_MINOR);
  EXPECT_EQ(CP_VERSION_NUMBER % 100, CP_VERSION_PATCH);
}

// What find_package() and the packages say is read from the header by CMake.
TEST(Version, IsThatOfTheBuild) { EXPECT_EQ(kVersion, CP_PROJECT_VERSION); }

}  // namespace
}  // namespace cp
