// cpsim verify redistribute, from the outside.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(VerifyRedistributeCommand, PrintsTheCounts) {
  const Finished finished = cpsim({"verify", "redistribute", "--ranks", "4", "--tensor-dims", "1"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  EXPECT_THAT(
      finished.out,
      ContainsRegex("^pairs [1-9][0-9]*, wrong 0, over bound 0, costlier 0, cheaper 0, misdeclared 0"));
  EXPECT_THAT(finished.err, IsEmpty());
}

TEST(VerifyRedistributeCommand, CrossMeshAddsPairs) {
  const auto pairs = [](const std::string& flag) {
    const Finished finished =
        cpsim({"verify", "redistribute", "--ranks", "2", "--tensor-dims", "1", flag, "--json"});
    EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
    const auto report = nlohmann::json::parse(finished.out);
    EXPECT_EQ(report["ok"], true);
    EXPECT_EQ(report["wrong"], 0);
    EXPECT_EQ(report["over_bound"], 0);
    EXPECT_EQ(report["costlier"], 0);
    EXPECT_THAT(report["failures"], IsEmpty());
    return report["pairs"].get<int>();
  };
  EXPECT_GT(pairs("--cross-mesh"), pairs("--no-cross-mesh"));
}

TEST(VerifyRedistributeCommand, RefusesWhatWouldTakeForEver) {
  const Finished finished = cpsim({"verify", "redistribute", "--ranks", "1024"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("--ranks 1024 is out of range; use 1 to 16"));
}

}  // namespace
}  // namespace cp::cli
