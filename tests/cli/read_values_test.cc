// Numbers, sizes and times as flags take them.
#include "sim/scenario/read_values.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::cp::testing::message_of;
using ::testing::HasSubstr;

TEST(Values, WholeNumbersAsLanguagesWriteThem) {
  EXPECT_EQ(parse_whole("--n", "1_000", 0), 1000);
  EXPECT_EQ(parse_whole("--n", "1e6", 0), 1'000'000);
  EXPECT_EQ(parse_whole("--n", "128K", 0), 131072);
  EXPECT_EQ(parse_whole("--n", "4Ki", 0), 4096);
  for (const char* text : {"_1", "1_", "1e", "e6", "1e-3", "1e19", "1.5e3", "1,000", "0x10"}) {
    EXPECT_THAT(message_of([&] { parse_whole("--n", text, 0); }), HasSubstr("--n " + std::string(text)))
        << text;
  }
  EXPECT_THAT(message_of([] { parse_whole("--n", "1,000", 0); }),
              HasSubstr("write, for example, 8, 4Ki or 128K"));
}

TEST(Values, SizesWithABAreOfTheUnitThatTheyName) {
  EXPECT_EQ(parse_bytes("--bytes", "4096"), 4096);
  EXPECT_EQ(parse_bytes("--bytes", "1GiB"), std::int64_t{1} << 30);
  EXPECT_EQ(parse_bytes("--bytes", "1G"), std::int64_t{1} << 30) << "as nccl-tests";
  EXPECT_EQ(parse_bytes("--bytes", "1GB"), 1'000'000'000);
  EXPECT_EQ(parse_bytes("--bytes", "128KB"), 128'000);
  EXPECT_EQ(parse_bytes("--bytes", "1.5MB"), 1'500'000);
  EXPECT_EQ(parse_bytes("--bytes", "64B"), 64);
  EXPECT_THAT(message_of([] { parse_bytes("--bytes", "0"); }),
              HasSubstr("out of range; use, for example, 4096"));
  EXPECT_THAT(message_of([] { parse_bytes("--bytes", "0GB"); }), HasSubstr("out of range"));
  EXPECT_THAT(message_of([] { parse_bytes("--bytes", "1e30GB"); }), HasSubstr("out of range"));
  EXPECT_THAT(message_of([] { parse_bytes("--bytes", "1.0005KB"); }), HasSubstr("no whole number of bytes"));
}

TEST(Values, AnErrorNamesAFileOnce) {
  const auto message = [](const char* what) {
    return message_of([&] { value_of("--model", "m.json", [&]() -> int { throw InvalidInput(what); }); });
  };
  EXPECT_EQ(message("m.json:2:1: not JSON"), "--model m.json:2:1: not JSON");
  EXPECT_EQ(message("m.json: no layers"), "--model m.json: no layers");
  EXPECT_EQ(message("no layers"), "--model m.json: no layers");
  EXPECT_EQ(message("m.jsonx: no layers"), "--model m.json: m.jsonx: no layers");
}

TEST(Values, MemoryAndTimesTakeUnits) {
  EXPECT_DOUBLE_EQ(parse_gib("--max-memory", "72"), 72);
  EXPECT_DOUBLE_EQ(parse_gib("--max-memory", "40.5"), 40.5);
  EXPECT_DOUBLE_EQ(parse_gib("--max-memory", "72GiB"), 72);
  EXPECT_DOUBLE_EQ(parse_gib("--max-memory", "80GB"), 80e9 / 0x1p30);
  EXPECT_THAT(message_of([] { parse_gib("--max-memory", "much"); }),
              HasSubstr("is not a number; write, for example, 72"));
  EXPECT_DOUBLE_EQ(parse_ms("--ttft-max", "20000"), 20000);
  EXPECT_DOUBLE_EQ(parse_ms("--ttft-max", "20s"), 20000);
  EXPECT_DOUBLE_EQ(parse_ms("--ttft-max", "500ms"), 500);
  EXPECT_DOUBLE_EQ(parse_ms("--ttft-max", "1.5min"), 90000);
  EXPECT_DOUBLE_EQ(parse_ms("--ttft-max", "250us"), 0.25);
  EXPECT_THAT(message_of([] { parse_ms("--ttft-max", "soon"); }),
              HasSubstr("is not a time; write, for example, 500 (ms)"));
}

}  // namespace
}  // namespace cp::sim
