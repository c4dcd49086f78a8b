#include "runtime/copy_engine_reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp {
namespace {

using runtime::refuse_copy_engines_across;
using ::testing::HasSubstr;

std::string refusal(const Group& group, bool each_is_a_host) {
  try {
    refuse_copy_engines_across({group}, {0, 1, 2, 3}, each_is_a_host);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(CopyEngineReach, IsTheMachine) {
  EXPECT_EQ(refusal({"cp", {0, 1, 4}}, false), "");  // without copy engines
  EXPECT_EQ(refusal({"cp_ce", {0, 1, 2, 3}, true}, false), "");
  EXPECT_EQ(refusal({"cp_ce", {4}, true}, false), "");  // moves nothing
  EXPECT_THAT(refusal({"cp_ce", {0, 1, 4, 5}, true}, false),
              HasSubstr("group cp_ce[0,1,4,5] is to be served by copy engines, but rank 4, 5 is on another "
                        "machine, where they do not reach; use transfers=sm"));
  EXPECT_THAT(refusal({"cp_ce", {0, 1}, true}, true), HasSubstr("may share GPUs"));
}

}  // namespace
}  // namespace cp
