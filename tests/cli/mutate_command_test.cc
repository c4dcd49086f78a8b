// cpsim mutate, from the outside.
#include <csignal>
#include <filesystem>
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

TEST(MutateCommand, PrintsTheTableAndTheTotals) {
  const Finished finished = cpsim({"mutate", "--cases", "300", "--seed", "2"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  EXPECT_THAT(finished.out,
              ContainsRegex("mutation +strategy +tried +check +fabric +ledger +result +equivalent +"
                            "rearranged +survivors\n"));
  EXPECT_THAT(finished.out,
              ContainsRegex("\n300 mutants of [0-9]+ sets of plans, [0-9]+ combinations of mutation and "
                            "strategy: [0-9]+ caught, [0-9]+ equivalent, 0 survive"));
  EXPECT_THAT(finished.err, IsEmpty());
}

TEST(MutateCommand, PrintsJson) {
  TemporaryFolder folder;
  const auto report = [&](const std::string& jobs) {
    const Finished finished = cpsim({"mutate", "--cases", "200", "--seed", "4", "--jobs", jobs, "--json",
                                     "--survivors", folder.file("survivors"), "--list", "ledger"});
    EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
    auto answer = nlohmann::json::parse(finished.out);
    answer.erase("seconds");
    return answer;
  };
  const nlohmann::json one = report("1");
  EXPECT_EQ(one["total"]["tried"], 200);
  EXPECT_EQ(one["ok"], true);
  EXPECT_EQ(one["listed"].size(), one["total"]["ledger"].get<std::size_t>());
  int tried = 0;
  for (const auto& row : one["table"]) {
    int sum = 0;
    for (const char* outcome :
         {"check", "fabric", "ledger", "result", "equivalent", "rearranged", "survivor"})
      sum += row[outcome].get<int>();
    EXPECT_EQ(row["tried"], sum);
    tried += sum;
  }
  EXPECT_EQ(tried, 200);
  EXPECT_EQ(one, report("3"));
  EXPECT_EQ(one["survivors"].size() > 0, std::filesystem::exists(folder.file("survivors")));
}

TEST(MutateCommand, RefusesWhatItDoesNotKnow) {
  const Finished finished = cpsim({"mutate", "--list", "lost"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err,
              HasSubstr("no mutant ends as 'lost'; use some of: check, fabric, ledger, result, equivalent"));
}

TEST(MutateCommand, CtrlCLeavesWhatWasDone) {
  CpsimProcess process({"mutate", "--cases", "1000000000"}, CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text(" a second, "));
  process.signal(SIGINT);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.exit_code, 130);
  EXPECT_THAT(finished.out, HasSubstr("; stopped before the end"));
}

}  // namespace
}  // namespace cp::cli
