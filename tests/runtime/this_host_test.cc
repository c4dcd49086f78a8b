#include "runtime/this_host.h"

#include <array>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace cp::runtime {
namespace {

TEST(ThisHost, HasTheSystemsName) {
  std::array<char, 257> name{};
  ASSERT_EQ(gethostname(name.data(), name.size() - 1), 0);
  EXPECT_EQ(host_name(), name.data());
}

TEST(ThisHost, HasOneBootIdUntilItStartsAgain) {
  EXPECT_EQ(boot_id(), boot_id());
  EXPECT_EQ(boot_id().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace cp::runtime
