// Tables: reading comma-separated values, and the validation tables that are compiled in.
#include <cstdint>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/presets/csv.h"
#include "sim/cost/presets/embedded.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using testing::message_of;

TEST(Csv, ReadsCells) {
  const auto rows = read_csv("a,b,c\r\n1,.5,x\r\n\n\"p, \"\"q\"\"\",,\"two\nlines\"\n3,4,5", "t.csv");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].number("a"), 1);
  EXPECT_EQ(rows[0].number("b"), 0.5);
  EXPECT_EQ(rows[0].text("c"), "x");
  EXPECT_EQ(rows[0].where(), "t.csv:2");
  EXPECT_EQ(rows[1].text("a"), "p, \"q\"");
  EXPECT_EQ(rows[1].text("b"), "");
  EXPECT_EQ(rows[1].text("c"), "two\nlines");
  EXPECT_EQ(rows[1].where(), "t.csv:4");
  EXPECT_EQ(rows[2].where(), "t.csv:6");
  EXPECT_TRUE(rows[2].has("b"));
  EXPECT_FALSE(rows[2].has("d"));
  EXPECT_TRUE(read_csv("a,b\n", "t.csv").empty());
}

TEST(Csv, ErrorsNameTheLine) {
  const auto reading = [](std::string text) { return message_of([&] { read_csv(text, "t.csv"); }); };
  EXPECT_EQ(reading("a,b\n1,2\n1\n"),
            "t.csv:3: 1 cells, but the first line names 2 columns; quote a cell that holds a comma");
  EXPECT_EQ(reading("a,b\n1,2,3\n"),
            "t.csv:2: 3 cells, but the first line names 2 columns; quote a cell that holds a comma");
  EXPECT_EQ(reading("a,,b\n"), "t.csv:1: column 2 has no name; name each column in the first line");
  EXPECT_EQ(reading("a,b,a\n"), "t.csv:1: two columns are called 'a'; rename one");
  EXPECT_EQ(reading("a,b\n1,\"2\n3,4\n"), "t.csv:2: the quote of cell 2 does not end; close it with \"");
  EXPECT_EQ(
      reading("a,b\n\"1\"2,3\n"),
      "t.csv:2: '2' stands after the closing quote of cell 1; a quote inside of a cell is written twice");
  EXPECT_EQ(reading(""), "t.csv:1: the table is empty; its first line names the columns");

  const CsvRow row = read_csv("size,time\nbig,1e3\n", "t.csv")[0];
  EXPECT_EQ(row.number("time"), 1000);
  EXPECT_EQ(message_of([&] { row.number("size"); }),
            "t.csv:2: size 'big' is no number; write, for example, 12.5");
  EXPECT_EQ(message_of([&] { row.number("tim"); }),
            "t.csv:2: there is no column 'tim'; the nearest one is 'time'");
  for (const char* cell : {"", " 1", "1 ", "1,5", "inf", "nan", "0x10", "1e999"}) {
    const auto rows = read_csv(str("a,b\n\"", cell, "\",1\n"), "t.csv");
    EXPECT_THROW(rows.at(0).number("a"), InvalidInput) << cell;
  }
}

TEST(Csv, WholeNumbersHaveNoFraction) {
  const auto whole = [](const char* cell) { return read_csv(str("a\n", cell, "\n"), "t.csv")[0].whole("a"); };
  EXPECT_EQ(whole("-3"), -3);
  EXPECT_EQ(whole("1e6"), 1'000'000);
  EXPECT_EQ(whole("9007199254740992"), std::int64_t{1} << 53);
  EXPECT_EQ(message_of([&] { whole("2.5"); }),
            "t.csv:2: a '2.5' is no whole number below 2^53; write, for example, 3");
  EXPECT_EQ(message_of([&] { whole("1e16"); }),
            "t.csv:2: a '1e16' is no whole number below 2^53; write, for example, 9007199254740992");
}

TEST(ValidationTables, AreAllThere) {
  const std::map<std::string, std::size_t> rows = {{"attention_8", 420},
                                                   {"attention_cudnn", 100},
                                                   {"context_parallel_hopper_blackwell", 160},
                                                   {"end_to_end", 19},
                                                   {"experts", 750},
                                                   {"flash_attention_3", 24},
                                                   {"flash_attention_a800_h800", 40},
                                                   {"kernels", 3460},
                                                   {"latent_attention", 320},
                                                   {"linear_attention", 296},
                                                   {"nccl_gpus", 1100},
                                                   {"nccl_tests", 152},
                                                   {"point_to_point_a800_h800", 7},
                                                   {"ring_attention_a800_h800", 168},
                                                   {"ring_flash_attention", 16},
                                                   {"served_tokens", 1063},
                                                   {"training_steps", 47},
                                                   {"usp_8xa100_nvlink", 167}};
  for (const auto& [name, count] : rows) EXPECT_EQ(validation_table(name).size(), count) << name;
  EXPECT_EQ(names_of(embedded_validation()).size(), rows.size());
}

TEST(ValidationTables, NumbersAreNumbers) {
  const std::map<std::string, std::string> measured = {
      {"attention_cudnn", "milliseconds"},
      {"context_parallel_hopper_blackwell", "tflops_per_gpu"},
      {"training_steps", "value"},
      {"end_to_end", "value"},
      {"ring_attention_a800_h800", "milliseconds"},
      {"ring_flash_attention", "iterations_per_second"},
      {"usp_8xa100_nvlink", "iterations_per_second"},
      {"nccl_gpus", "microseconds"},
      {"nccl_tests", "microseconds"}};
  for (const auto& [name, column] : measured) {
    for (const CsvRow& row : validation_table(name)) EXPECT_GT(row.number(column), 0) << row.where();
  }
}

TEST(ValidationTables, AnUnknownNameIsAnsweredWithTheNearest) {
  EXPECT_THAT(message_of([] { validation_table("nccl_test"); }),
              ::testing::StartsWith("unknown validation table 'nccl_test'; the nearest one is 'nccl_tests'"));
}

}  // namespace
}  // namespace cp::sim
