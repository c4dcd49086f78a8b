#include "traces/trace_files.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/messages.h"
#include "tests/traces/small_traces.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::message_of;
using testing::sample_traces;

namespace fs = std::filesystem;

class TraceFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "cp_trace_files_" + test->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_F(TraceFiles, AFolderOfRanksIsOneTrace) {
  std::vector<RankTrace> run = sample_traces(12);
  for (const RankTrace& trace : run) write_trace_file(rank_trace_path(folder_, trace.rank), {&trace, 1});
  write(path("rank-x.cptrace"), "no trace");
  write(path("notes.txt"), "no trace");
  const TraceFile file = read_trace_path(folder_);
  EXPECT_EQ(file.ranks, run) << "by rank, not by name: rank 10 after rank 9";
  EXPECT_FALSE(file.truncation.has_value());
  EXPECT_EQ(rank_trace_path("a", 3), "a/rank-3.cptrace");
}

// The format of today, which later versions read; a seed of the fuzzer too.
TEST_F(TraceFiles, TheStoredFileWithAllSectionsIsWrittenAlike) {
  write_trace_file(path("again.cptrace"), sample_traces(3));
  EXPECT_EQ(contents(path("again.cptrace")), contents("tests/traces/files/all_sections.cptrace"));
}

TEST_F(TraceFiles, AFileIsReadAsItIs) {
  write_trace_file(path("all.cptrace"), sample_traces(2));
  EXPECT_EQ(read_trace_path(path("all.cptrace")).ranks, sample_traces(2));
  EXPECT_THAT(message_of<BadTrace>([&] { read_trace_path(path("none.cptrace")); }), HasSubstr("cannot open"));
}

TEST_F(TraceFiles, FoldersThatHoldNoRunAreRefused) {
  EXPECT_THAT(message_of<BadTrace>([&] { read_trace_path(folder_); }),
              AllOf(HasSubstr("holds no trace"), EndsWith("for example " + rank_trace_path(folder_, 0))));
  const RankTrace trace = sample_traces(1)[0];
  write_trace_file(path("rank-0.cptrace"), {&trace, 1});
  write_trace_file(path("rank-1.cptrace"), {&trace, 1});
  EXPECT_EQ(message_of<BadTrace>([&] { read_trace_path(folder_); }),
            path("rank-1.cptrace") + " holds rank 0, which " + path("rank-0.cptrace") + " holds too");
  write(path("rank-01.cptrace"), "");
  EXPECT_THAT(message_of<BadTrace>([&] { read_trace_path(folder_); }),
              EndsWith("are both traces of rank 1; keep one of them"));
}

TEST_F(TraceFiles, EveryFileThatWasCutIsNamed) {
  for (const RankTrace& trace : sample_traces(3)) {
    const std::string file = rank_trace_path(folder_, trace.rank);
    write_trace_file(file, {&trace, 1});
    if (trace.rank != 1) fs::resize_file(file, fs::file_size(file) - 1);
  }
  const TraceFile file = read_trace_path(folder_);
  EXPECT_EQ(file.ranks, sample_traces(3)) << "the end record alone is missing";
  ASSERT_TRUE(file.truncation.has_value());
  EXPECT_THAT(*file.truncation, AllOf(HasSubstr("rank-0.cptrace is cut off"), HasSubstr("; "),
                                      HasSubstr("rank-2.cptrace is cut off")));
}

TEST_F(TraceFiles, AMergedFileIsThatOfAllRanks) {
  const std::vector<RankTrace> run = sample_traces(3);
  for (const RankTrace& trace : run) write_trace_file(rank_trace_path(folder_, trace.rank), {&trace, 1});
  merge_trace_files(trace_files_of(folder_), path("merged.cptrace"));
  write_trace_file(path("written.cptrace"), run);
  EXPECT_EQ(contents(path("merged.cptrace")), contents(path("written.cptrace")));
}

// What a later version wrote stays in a file that this one writes again.
TEST_F(TraceFiles, FieldsAndKindsThatAreUnknownStayWhenAFileIsWrittenAgain) {
  proto::RankTrace message = to_proto(sample_traces(1)[0]);
  const auto add_field = [](google::protobuf::Message& to) {
    to.GetReflection()->MutableUnknownFields(&to)->AddLengthDelimited(900, "of a later version");
  };
  add_field(message);
  add_field(*message.mutable_issued(0));
  add_field(*message.mutable_issued_times(0));
  std::ostringstream out;
  RecordWriter records(out);
  records.write(RecordKind::rank_trace, message.SerializeAsString());
  records.write(static_cast<RecordKind>(900), "a kind of a later version");
  records.finish();
  write(path("rank-0.cptrace"), out.str());
  EXPECT_EQ(read_trace_path(folder_).ranks, sample_traces(1));
  merge_trace_files({path("rank-0.cptrace")}, path("again.cptrace"));
  EXPECT_EQ(contents(path("again.cptrace")), out.str());
}

TEST_F(TraceFiles, WhatIsNotWholeIsNotMerged) {
  const std::vector<RankTrace> run = sample_traces(2);
  write_trace_file(path("a.cptrace"), {&run[0], 1});
  write_trace_file(path("b.cptrace"), run);
  EXPECT_THAT(message_of<BadTrace>([&] {
                merge_trace_files({path("a.cptrace"), path("b.cptrace")}, path("c.cptrace"));
              }),
              HasSubstr("holds rank 0"));
  EXPECT_THAT(message_of<InvalidInput>([&] { merge_trace_files({path("a.cptrace")}, path("a.cptrace")); }),
              HasSubstr("would overwrite"));
  fs::resize_file(path("a.cptrace"), fs::file_size(path("a.cptrace")) - 1);
  EXPECT_THAT(message_of<BadTrace>([&] { merge_trace_files({path("a.cptrace")}, path("c.cptrace")); }),
              HasSubstr("is cut off"));
  EXPECT_FALSE(fs::exists(path("c.cptrace")));
}

TEST_F(TraceFiles, WhatWasAppendedIsReadableAtOnce) {
  const RankTrace whole = sample_traces(1)[0];
  RankTrace begin, rest;
  begin.environment = whole.environment;
  begin.issued = {whole.issued[0]};
  begin.issued_times = {whole.issued_times[0]};
  rest.issued = {whole.issued.begin() + 1, whole.issued.end()};
  rest.issued_times = {whole.issued_times.begin() + 1, whole.issued_times.end()};
  rest.observed = whole.observed;
  rest.digests = whole.digests;
  TraceFileWriter writer(path("rank-0.cptrace"));
  EXPECT_TRUE(read_trace_path(folder_).ranks.empty());
  writer.append(begin);
  const TraceFile running = read_trace_path(folder_);
  ASSERT_EQ(running.ranks.size(), 1U);
  EXPECT_EQ(running.ranks[0].issued, begin.issued);
  EXPECT_THAT(running.truncation.value_or(""), HasSubstr("before its end record"));
  writer.append(rest);
  writer.finish();
  const TraceFile finished = read_trace_path(folder_);
  EXPECT_FALSE(finished.truncation.has_value());
  ASSERT_EQ(finished.ranks.size(), 1U);
  EXPECT_EQ(finished.ranks[0], whole);
  EXPECT_EQ(finished.ranks[0].issued_times, whole.issued_times);
  EXPECT_EQ(finished.ranks[0].environment, whole.environment);
  EXPECT_THROW(TraceFileWriter(path("no/such/folder")), BadTrace);
}

}  // namespace
}  // namespace cp
