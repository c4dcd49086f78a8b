#include "cli/common/exit_codes.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kOneLine = 1 << 20;

// Every run of white space as one blank.
std::string flat(const std::string& text) {
  std::istringstream words(text);
  std::string all, word;
  while (words >> word) all += all.empty() ? word : " " + word;
  return all;
}

TEST(ExitCodes, EveryKindOfErrorHasOneOfItsOwn) {
  std::set<int> codes;
  for (const ErrorKind kind : kErrorKinds) {
    const int code = exit_code(kind);
    EXPECT_TRUE(codes.insert(code).second) << name(kind) << " shares " << code;
    EXPECT_GT(code, kSuccess);
    EXPECT_LT(code, kInternalError);
    EXPECT_EQ(runtime::kind_of_exit_code(code), kind);
    const auto table = exit_code_table();
    const auto row = std::ranges::find(table, code, &ExitCodeRow::code);
    ASSERT_NE(row, table.end()) << name(kind);
    EXPECT_EQ(row->kind, kind);
    EXPECT_STRNE(row->meaning, "");
  }
}

// Scripts compare with these.
TEST(ExitCodes, StayAsTheyAre) {
  EXPECT_EQ(exit_code(ErrorKind::check_failed), 1);
  EXPECT_EQ(exit_code(ErrorKind::invalid_input), 2);
  EXPECT_EQ(exit_code(ErrorKind::collective_mismatch), 10);
  EXPECT_EQ(exit_code(ErrorKind::deadlock), 11);
  EXPECT_EQ(exit_code(ErrorKind::timeout), 12);
  EXPECT_EQ(exit_code(ErrorKind::peer_lost), 13);
  EXPECT_EQ(exit_code(ErrorKind::rendezvous), 14);
  EXPECT_EQ(exit_code(ErrorKind::authentication), 15);
  EXPECT_EQ(exit_code(ErrorKind::address_in_use), 16);
  EXPECT_EQ(exit_code(ErrorKind::bad_trace), 17);
  EXPECT_EQ(exit_code(ErrorKind::ledger), 19);
  EXPECT_EQ(exit_code(ErrorKind::infeasible), 20);
  EXPECT_EQ(exit_code_of_signal(SIGKILL), 137);
}

TEST(ExitCodes, WhatIsNoErrorsIsNoKind) {
  for (const int code : {0, 3, 18, kInternalError, 126, 127, 128, exit_code_of_signal(SIGKILL), -1})
    EXPECT_EQ(runtime::kind_of_exit_code(code), std::nullopt) << code;
}

TEST(ExitCodes, TheTableAscends) {
  const auto table = exit_code_table();
  EXPECT_TRUE(std::ranges::is_sorted(table, {}, &ExitCodeRow::code));
  EXPECT_EQ(table.size(), kErrorKinds.size() + 2);
}

TEST(ExitCodes, TheTextKeepsToItsColumns) {
  std::istringstream lines(exit_codes_text(60));
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    EXPECT_LE(line.size(), 60u) << line;
    ++count;
  }
  EXPECT_GT(count, 5);
  EXPECT_EQ(flat(exit_codes_text(60)), exit_codes_text(kOneLine));
}

TEST(ExitCodes, TheDocumentSaysWhatTheTableSays) {
  std::ifstream file(CP_SOURCE_DIR "/docs/architecture.md");
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(document.empty());
  EXPECT_THAT(flat(document), HasSubstr(exit_codes_text(kOneLine) + "."));
}

TEST(ExitCodes, HelpShowsThem) {
  EXPECT_THAT(flat(cpsim({"--help"}).out), HasSubstr(exit_codes_text(kOneLine)));
}

}  // namespace
}  // namespace cp::cli
