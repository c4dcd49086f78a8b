// Files of graphs: what was written whole comes back, and nothing else does.
#include "runtime/cuda/graph_files.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/emulated_gpu/tests/own_folder.h"

namespace cp::runtime {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Bytes bytes_of(const std::string& text) {
  const auto* const first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}
GraphFiles::Name named(std::uint64_t key, std::string version = "cuDNN 9.19") {
  return {{7, key}, std::move(version)};
}
std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

class GraphFilesTest : public ::testing::Test {
 protected:
  GraphFiles files(std::uintmax_t most = GraphFiles::kMostBytes) {
    return GraphFiles(
        folder(), [this](const std::string& note) { notes_.push_back(note); }, most);
  }
  fs::path folder() const { return own_.path() / "cache" / "cpsim"; }
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder()), fs::directory_iterator()));
  }

  const testing::OwnFolder own_;
  std::vector<std::string> notes_;
};

TEST_F(GraphFilesTest, WhatWasWrittenComesBack) {
  GraphFiles first = files();
  EXPECT_EQ(first.read(named(1)), std::nullopt);
  const Bytes binary = bytes_of(std::string("a\n\0b\n", 5));
  first.write(named(1), binary);
  first.write(named(2), {});
  GraphFiles second = files();
  EXPECT_EQ(second.read(named(1)), binary);
  EXPECT_EQ(second.read(named(2)), Bytes());
  EXPECT_EQ(second.read(named(3)), std::nullopt);
  EXPECT_EQ(second.read(named(1, "cuDNN 9.28")), std::nullopt);
  EXPECT_EQ(fs::status(folder()).permissions() & fs::perms::others_all, fs::perms::none);
  EXPECT_EQ(count(), 2U);
  EXPECT_THAT(notes_, IsEmpty());
}

// Every shorter file, and every file with another byte, is left out, and written again.
TEST_F(GraphFilesTest, ATornFileIsLeftOut) {
  GraphFiles writer = files();
  const Bytes bytes = bytes_of("kernels");
  writer.write(named(1), bytes);
  const fs::path path = writer.path_of(named(1));
  const std::string whole = content_of(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(path, whole.substr(0, size));
    ASSERT_EQ(files().read(named(1)), std::nullopt) << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string other = whole;
    other[at] ^= 1;
    put(path, other);
    ASSERT_EQ(files().read(named(1)), std::nullopt) << at;
  }
  EXPECT_EQ(notes_.size(), 2 * whole.size());
  EXPECT_THAT(notes_, ::testing::Each(HasSubstr("is left out and made again: it is")));
  notes_.clear();
  files().write(named(1), bytes);
  EXPECT_EQ(files().read(named(1)), bytes);
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(GraphFilesTest, AForeignFileIsLeftOutAndNotedOnce) {
  GraphFiles all = files();
  all.write(named(1), bytes_of("of another version"));
  fs::rename(all.path_of(named(1)), all.path_of(named(1, "cuDNN 9.28")));
  EXPECT_EQ(all.read(named(1, "cuDNN 9.28")), std::nullopt);
  all.write(named(2), bytes_of("of another graph"));
  fs::rename(all.path_of(named(2)), all.path_of(named(3)));
  EXPECT_EQ(all.read(named(3)), std::nullopt);
  put(all.path_of(named(4)), "of another program");
  EXPECT_EQ(all.read(named(4)), std::nullopt);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("it is of cuDNN 9.19")));
}

TEST_F(GraphFilesTest, SeveralWritersOfOneFileLeaveOneWholeFile) {
  std::vector<std::thread> writers;
  for (char letter = 'a'; letter < 'e'; ++letter) {
    writers.emplace_back([&, letter] {
      GraphFiles own(folder());
      for (int i = 0; i < 50; ++i) {
        own.write(named(1), bytes_of(std::string(10'000, letter)));
        const auto read = own.read(named(1));
        ASSERT_TRUE(read);
        ASSERT_EQ(*read, Bytes(10'000, (*read)[0]));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(count(), 1U);
}

TEST_F(GraphFilesTest, TheOldestGoWhereThereAreTooMany) {
  GraphFiles small = files(5'000);
  const auto age = [&](std::uint64_t key, int hours) {
    fs::last_write_time(small.path_of(named(key)),
                        fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  for (std::uint64_t key = 1; key <= 4; ++key) {
    small.write(named(key), Bytes(1'000));
    age(key, static_cast<int>(10 - key));
  }
  EXPECT_TRUE(small.read(named(1)));  // the oldest; now it was used last
  small.write(named(5), Bytes(1'000));
  EXPECT_FALSE(small.read(named(2)));
  for (const std::uint64_t kept : {1U, 3U, 4U, 5U}) EXPECT_TRUE(small.read(named(kept))) << kept;
  small.write(named(6), Bytes(10'000));  // alone too large: still there for its own process
  EXPECT_TRUE(small.read(named(6)));
  EXPECT_EQ(count(), 1U);
}

TEST_F(GraphFilesTest, WhatAProcessLeftHalfWrittenGoesInTime) {
  GraphFiles all = files();
  all.write(named(1), Bytes(10));
  const fs::path old = folder() / "old.graph.1.1.part", young = folder() / "young.graph.1.1.part";
  put(old, "half"), put(young, "half");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  all.write(named(2), Bytes(10));
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
}

TEST_F(GraphFilesTest, AFolderThatOthersMayWriteToIsNotUsed) {
  GraphFiles all = files();
  all.write(named(1), Bytes(10));
  fs::permissions(folder(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_FALSE(all.read(named(1)));
  all.write(named(2), Bytes(10));
  EXPECT_EQ(count(), 1U);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("CP_GRAPH_CACHE")));
}

TEST_F(GraphFilesTest, WhereNoFolderCanBeNothingIsKeptAndThatIsNotedOnce) {
  put(own_.path() / "cache", "a file");
  GraphFiles all = files();
  all.write(named(1), Bytes(10));
  all.write(named(2), Bytes(10));
  EXPECT_FALSE(all.read(named(1)));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("could not be kept")));
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

TEST(GraphFolder, IsWhatTheEnvironmentSays) {
  const Variable home("HOME", "/home/somebody"), caches("XDG_CACHE_HOME", nullptr),
      own("CP_GRAPH_CACHE", nullptr);
  EXPECT_EQ(graph_folder_of_environment(), "/home/somebody/.cache/cpsim");
  {
    const Variable elsewhere("XDG_CACHE_HOME", "/scratch");
    EXPECT_EQ(graph_folder_of_environment(), "/scratch/cpsim");
    const Variable named("CP_GRAPH_CACHE", "graphs");
    EXPECT_EQ(graph_folder_of_environment(), "graphs");
    const Variable none("CP_GRAPH_CACHE", "");
    EXPECT_EQ(graph_folder_of_environment(), "");
  }
  const Variable homeless("HOME", nullptr);
  EXPECT_EQ(graph_folder_of_environment(), "");
}

}  // namespace
}  // namespace cp::runtime
