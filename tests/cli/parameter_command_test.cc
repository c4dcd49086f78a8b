// cpsim parameter, from the outside.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ParameterCommand, RunsAndProves) {
  const Words words = {"parameter",
                       "--mesh",
                       "dp_replicate=2,dp_shard=2,tp=2",
                       "--shape",
                       "6x4",
                       "--parameter",
                       "R,R,S(1)",
                       "--shard",
                       "dp_shard",
                       "--replicate",
                       "dp_replicate",
                       "--gradient",
                       "P(avg),P(avg),P(sum)"};
  const Finished finished = cpsim(words);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, AllOf(HasSubstr("normalize"), HasSubstr("R,S(0),S(1) f32"),
                                  HasSubstr("exact: what is gathered, and the avg of the gradients of 2")))
      << finished.out;
  const auto small = nlohmann::json::parse(cpsim(with(words, {"--json", "--threshold", "25"})).out);
  EXPECT_EQ(small["schema"], "cpsim.parameter/1");
  EXPECT_EQ(small["sharded"], false);
  EXPECT_EQ(small["exact"], true);
  EXPECT_EQ(small["moves"][0]["sent_bytes"], 0);
}

TEST(ParameterCommand, SaysWhatIsMissingOrWrong) {
  const auto error = [](const Words& words) {
    const Finished finished = cpsim(words);
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(error({"parameter"}), HasSubstr("--mesh and --shape are missing"));
  EXPECT_THAT(error({"parameter", "--mesh", "s=2", "--shape", "4", "--shard", "t"}), HasSubstr("t"));
  EXPECT_THAT(error({"parameter", "--mesh", "s=2", "--shape", "4", "--reduce", "max"}),
              HasSubstr("--reduce max is unknown; use avg or sum"));
}

}  // namespace
}  // namespace cp::cli
