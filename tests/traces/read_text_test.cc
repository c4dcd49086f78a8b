#include "traces/read_text.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "traces/plan.pb.h"
#include "traces/scenario.pb.h"

namespace cp {
namespace {

template <class Message>
std::string error_of_text(std::string_view text, const TextCheck& check = {}) {
  Message message;
  try {
    read_text(text, "a.txtpb", "plan", message, check);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(ReadText, ReadsAnyMessage) {
  proto::CostModel cost;
  read_text("node_gbps: 3\nranks_per_node: 4\n", "a.txtpb", "cost model", cost);
  EXPECT_EQ(cost.node_gbps(), 3);
  EXPECT_EQ(cost.ranks_per_node(), 4);
}

TEST(ReadText, NamesEnumeratorsInsideOfRepeatedFields) {
  EXPECT_EQ(error_of_text<proto::Plan>(
                "buffers { dtype: f32 }\nbuffers { dtype: bf16 }\nbuffers {\n  dtype: 17\n}\n"),
            "a.txtpb:4:3: unknown dtype 17; use one of f32, f16, bf16, i32, i64");
  EXPECT_EQ(error_of_text<proto::Plan>("target {\n  dtypes: f32\n  dtypes: 17\n}\n"),
            "a.txtpb:3:3: unknown dtypes 17; use one of f32, f16, bf16, i32, i64");
}

TEST(ReadText, ChecksRunOnWhatParsesAlone) {
  const TextCheck check = [](const TextLocations&, TextErrors& errors) { errors.add({1, 2}, "no"); };
  EXPECT_EQ(error_of_text<proto::CostModel>("node_gbps: 3\n\n", check), "a.txtpb:2:1: no");
  EXPECT_EQ(error_of_text<proto::CostModel>("node_gpbs: 3\n\n", check),
            "a.txtpb:1:1: unknown field 'node_gpbs' of CostModel; the nearest one is 'node_gbps'");
}

TEST(ReadText, HugeTextsAreRefused) {
  EXPECT_EQ(error_of_text<proto::Plan>(std::string((1 << 24) + 1, ' ')),
            "a.txtpb: the file has 16777217 bytes, but a plan has at most 16777216; is it the right file?");
}

// Files whose size says nothing, or that have a terabyte of nothing: no more of them is read than of any
// text.
TEST(ReadText, HugeFilesAreRefusedBeforeTheyAreRead) {
  const std::filesystem::path sparse =
      std::filesystem::temp_directory_path() / ("cp-sparse-" + std::to_string(getpid()) + ".txtpb");
  std::ofstream(sparse).close();
  std::filesystem::resize_file(sparse, std::uintmax_t{1} << 40);
  for (const std::string& path : {std::string("/dev/zero"), sparse.string()}) {
    try {
      read_text_file(path, "scenario");
      ADD_FAILURE() << path;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(error.what(),
                path +
                    ": the file is too large: a scenario has at most 16777216 bytes; is it the right "
                    "file?");
    }
  }
  std::filesystem::remove(sparse);
}

TEST(ReadText, FilesThatCannotBeReadAreNamed) {
  try {
    read_text_file("/nowhere/a.txtpb", "cluster");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_STREQ(error.what(), "cannot read the cluster /nowhere/a.txtpb: No such file or directory");
  }
}

}  // namespace
}  // namespace cp
