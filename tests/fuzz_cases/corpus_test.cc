// The kept corpus: cases that have failed once, each with why, and edges that generators reach seldom. All
// hold; the canaries do not.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/fuzz/judge.h"
#include "traces/fuzz_case.h"

namespace cp::sim {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(CP_SOURCE_DIR "/tests/corpus")) {
    if (entry.path().extension() == ".txtpb") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Corpus : public ::testing::TestWithParam<std::string> {};

TEST_P(Corpus, Holds) {
  const proto::FuzzCase fuzz_case = read_case_file(CP_SOURCE_DIR "/tests/corpus/" + GetParam() + ".txtpb");
  const Judgement judgement = judge(fuzz_case);
  EXPECT_FALSE(judgement.finding) << judgement.finding->property() << ": " << judgement.finding->message();
  EXPECT_EQ(judge(fuzz_case).digest, judgement.digest);
}

// cpsim fuzz names what it adds to a corpus case-<digest>, and GoogleTest takes letters and digits alone.
std::string test_name(std::string file) {
  for (char& c : file) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return file;
}
INSTANTIATE_TEST_SUITE_P(Cases, Corpus, ::testing::ValuesIn(corpus()),
                         [](const auto& row) { return test_name(row.param); });

}  // namespace
}  // namespace cp::sim
