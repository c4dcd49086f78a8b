// Keeps the front door true: docs/embedding.md and cmake/CpPublicHeaders.cmake name the same headers, all of
// these can be installed, and the page names every example. It reads the sources alone.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

const std::filesystem::path kRoot = CP_SOURCE_DIR;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(kRoot / path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> all_matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

std::set<std::string> listed_headers() {
  static const std::regex header(R"(\n +((?:shared|traces|sim|runtime)/[\w/]+\.h))");
  return all_matches(text_of("cmake/CpPublicHeaders.cmake"), header);
}

// Those of the page's table, where the headers of one row share the folder of its first: "`shared/plan/
// builder.h`, `check.h`". A name with a folder of its own begins anew where a room does.
std::set<std::string> headers_of_table(const std::string& page) {
  static const std::regex row(
      R"(\n\| [^|\n]* \| ([^|\n]*\.h`[^|\n]*) \| (?:core|fabric|planner|runtime) \|)");
  static const std::regex name(R"(`([\w/]+\.h)`)");
  static const std::regex room(R"((?:shared|traces|sim|runtime)/.*)");
  std::set<std::string> found;
  for (std::sregex_iterator match(page.begin(), page.end(), row), end; match != end; ++match) {
    const std::string names = (*match)[1];
    std::string folder;
    for (std::sregex_iterator each(names.begin(), names.end(), name); each != end; ++each) {
      const std::string header = (*each)[1];
      if (std::regex_match(header, room)) {
        folder = header.substr(0, header.rfind('/') + 1);
        found.insert(header);
      } else {
        found.insert(folder + header);
      }
    }
  }
  return found;
}

TEST(PublicHeaders, TheTableHasTheFolderOfTheFirst) {
  EXPECT_THAT(
      headers_of_table("\n| do | `shared/plan/builder.h`, `check.h`; `sim/a/b.h` beside `c/d.h` | core |\n"
                       "| other | no header | core |\n| more | `runtime/job.h` | runtime |\n"),
      ElementsAre("runtime/job.h", "shared/plan/builder.h", "shared/plan/check.h", "sim/a/b.h",
                  "sim/a/c/d.h"));
}

TEST(PublicHeaders, ThePageAndTheListNameTheSame) {
  const std::set<std::string> listed = listed_headers();
  ASSERT_THAT(listed, SizeIs(::testing::Ge(40U)));
  EXPECT_EQ(headers_of_table(text_of("docs/embedding.md")), listed);
}

// A page that tells people to include what is not installed sends them away.
TEST(PublicHeaders, WhatThePageTellsOfIsListed) {
  static const std::regex path(R"(`((?:shared|traces|sim|runtime)/[\w/]+\.h)`)");
  std::set<std::string> named = all_matches(text_of("docs/embedding.md"), path);
  named.erase("sim/scenario/rank_job.h");  // the page says why it is not
  EXPECT_THAT(listed_headers(), IsSupersetOf(named));
}

// cmake/CpInstallHeaders.cmake installs what a header includes with it, and can do so with files of the
// repository alone: not with generated ones, nor with those of libraries that a program may not have.
TEST(PublicHeaders, IncludeWhatCanBeInstalled) {
  static const std::regex own(R"re(\n#include "([^"]*)")re"), others(R"(\n#include <([^>]*)>)");
  const std::set<std::string> listed = listed_headers();
  std::vector<std::string> open(listed.begin(), listed.end());
  const std::set<std::string> of_posix = {"fcntl.h", "unistd.h"};
  std::set<std::string> closed, foreign;
  while (!open.empty()) {
    const std::string header = open.back();
    open.pop_back();
    if (!closed.insert(header).second) continue;
    ASSERT_TRUE(std::filesystem::is_regular_file(kRoot / header)) << header;
    const std::string text = "\n" + text_of(header);
    for (const std::string& included : all_matches(text, own)) open.push_back(included);
    for (const std::string& included : all_matches(text, others)) {
      const bool of_the_language = included.find_first_of("./") == std::string::npos;
      if (!of_the_language && !of_posix.contains(included)) foreign.insert(header + ": " + included);
    }
  }
  EXPECT_GT(closed.size(), listed.size());
  EXPECT_THAT(foreign, IsEmpty());
}

TEST(Examples, AreAllOnThePage) {
  const std::string page = text_of("docs/embedding.md");
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "examples")) {
    if (entry.path().extension() != ".cc") continue;
    ++examples;
    EXPECT_THAT(page, HasSubstr("| `" + entry.path().filename().string() + "` |"));
  }
  EXPECT_GE(examples, 10);
}

}  // namespace
