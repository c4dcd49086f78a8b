// That what is disabled is run by something: a test that nobody runs says nothing. It reads the sources
// alone.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The names of the disabled tests of a source that neither the scripts nor the rest of the source mention.
std::vector<std::string> run_by_nobody(const std::string& source, const std::string& scripts) {
  static const std::regex test(R"(\n(?:TEST|TEST_F|TEST_P|RC_GTEST_PROP)\(\w+, (DISABLED_\w+))");
  std::vector<std::string> found;
  for (std::sregex_iterator match(source.begin(), source.end(), test), end; match != end; ++match) {
    const std::string name = (*match)[1];
    const bool in_source = source.find(name) != source.rfind(name);
    if (!in_source && scripts.find(name) == std::string::npos) found.push_back(name);
  }
  return found;
}

std::string texts_below(const std::filesystem::path& folder, std::vector<std::string>* each = nullptr) {
  std::string all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (each != nullptr && entry.path().extension() == ".cc") each->push_back("\n" + text);
    all += text;
  }
  return all;
}

TEST(DisabledTests, AreRunByAScriptOrByTheirOwnSource) {
  const std::filesystem::path root = CP_SOURCE_DIR;
  const std::string scripts = texts_below(root / "scripts");
  std::vector<std::string> sources;
  texts_below(root / "tests", &sources);
  ASSERT_GT(sources.size(), 100U);
  for (const std::string& source : sources) EXPECT_THAT(run_by_nobody(source, scripts), IsEmpty());
}

TEST(DisabledTests, AreFound) {
  const std::string one = "\nTEST(A, DISABLED_B) {\n}\n";
  EXPECT_THAT(run_by_nobody(one, ""), ElementsAre("DISABLED_B"));
  EXPECT_THAT(run_by_nobody(one, "--gtest_filter='*.DISABLED_B/*'"), IsEmpty());
  EXPECT_THAT(run_by_nobody(one + "run(\"A.DISABLED_B\");\n", ""), IsEmpty());
  EXPECT_THAT(run_by_nobody("\nRC_GTEST_PROP(A, DISABLED_C, ()) {\n}\nTEST(A, B) {\n}\n", ""),
              ElementsAre("DISABLED_C"));
}

}  // namespace
