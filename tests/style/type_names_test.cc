// No two types of one name in one namespace: programs that link both have no meaning (the one-definition
// rule), and no compiler or linker says so. It reads the sources as clang-format writes them: types of
// namespaces begin in the first column, and a namespace ends with its comment.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The type that the line begins to define; empty: none, a specialization of a template or a member
// of another type.
std::string type_of(std::string_view line) {
  for (const std::string_view keyword : {"enum class ", "class ", "struct ", "union "}) {
    if (!line.starts_with(keyword)) continue;
    const bool declares = line.ends_with(';') && line.find('{') == std::string_view::npos;
    const std::size_t end = std::min(line.find_first_of(":{;"), line.size());
    const std::string_view head = line.substr(keyword.size(), end - keyword.size());
    const bool is_member = line.substr(end).starts_with("::");  // of a type that another file has
    if (declares || is_member || head.find('<') != std::string_view::npos) return "";
    std::istringstream words{std::string(head)};
    std::string name;
    for (std::string word; words >> word;) name = word == "final" ? name : word;
    return name;
  }
  return "";
}

// By full names, but those of unnamed namespaces.
std::set<std::string> types_of(const std::string& text) {
  std::set<std::string> types;
  std::vector<std::string> namespaces;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("namespace ") && line.ends_with('{')) {
      const std::size_t begin = std::string_view("namespace ").size();
      namespaces.push_back(line.substr(begin, line.size() - begin - 1));
    } else if (line.starts_with("}  // namespace") && !namespaces.empty()) {
      namespaces.pop_back();
    } else if (const std::string type = type_of(line); !type.empty()) {
      std::string full;
      for (const std::string& each : namespaces) full += each + "/ ";
      const bool unnamed = std::find(namespaces.begin(), namespaces.end(), "") != namespaces.end();
      if (!unnamed) types.insert(full + type);
    }
  }
  return types;
}

// "cp::sim / Program: a.h, b.h"
std::vector<std::string> defined_twice(const std::map<std::string, std::string>& sources) {
  std::map<std::string, std::string> files;
  std::set<std::string> twice;
  for (const auto& [path, text] : sources) {
    for (const std::string& type : types_of(text)) {
      const auto [known, first] = files.emplace(type, path);
      if (first) continue;
      known->second += ", " + path;
      twice.insert(type);
    }
  }
  std::vector<std::string> found;
  for (const std::string& type : twice) found.push_back(type + ": " + files.at(type));
  return found;
}

TEST(TypeNames, AreOnceInANamespace) {
  namespace fs = std::filesystem;
  const fs::path root = CP_SOURCE_DIR;
  std::map<std::string, std::string> sources;
  for (const char* room : {"shared", "traces", "sim", "runtime", "cli", "tests", "benchmarks"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() || (extension != ".h" && extension != ".cc" && extension != ".cu"))
        continue;
      std::ifstream file(entry.path(), std::ios::binary);
      sources[fs::relative(entry.path(), root).generic_string()] = {std::istreambuf_iterator<char>(file), {}};
    }
  }
  ASSERT_GT(sources.size(), 1000U) << "under " << CP_SOURCE_DIR;
  EXPECT_THAT(defined_twice(sources), IsEmpty());
}

TEST(TypeNames, AreFound) {
  const std::string plan = "namespace cp {\n\nstruct Plan {\n  struct Part {};\n};\n\n}  // namespace cp\n";
  EXPECT_THAT(defined_twice({{"a.h", plan}, {"b.h", plan}}), ElementsAre("cp / Plan: a.h, b.h"));
  const auto in_cp = [](const std::string& line) {
    return "namespace cp {\n" + line + "\n}  // namespace cp\n";
  };
  EXPECT_THAT(defined_twice({{"a.h", plan}, {"b.h", in_cp("class Plan final : public Base {\n};")}}),
              ElementsAre("cp / Plan: a.h, b.h"));
  EXPECT_THAT(defined_twice({{"a.h", plan}, {"b.h", in_cp("enum class Plan : std::uint8_t { one };")}}),
              ElementsAre("cp / Plan: a.h, b.h"));
  // A declaration, a specialization, a member, another namespace, and one that has no name.
  EXPECT_THAT(
      defined_twice({{"a.h", plan}, {"b.h", in_cp("struct Plan;\nstruct Plan<int> {\nstruct Plan::Data {")}}),
      IsEmpty());
  EXPECT_THAT(defined_twice(
                  {{"a.h", plan}, {"b.h", "namespace cp::sim {\nstruct Plan {\n}  // namespace cp::sim\n"}}),
              IsEmpty());
  EXPECT_THAT(defined_twice({{"a.h", plan}, {"b.cc", in_cp("namespace {\nstruct Plan {\n}  // namespace")}}),
              IsEmpty());
}

}  // namespace
