// The small pieces that reports are made of.
#include <gtest/gtest.h>

#include "cli/common/printable.h"
#include "sim/base/number_text.h"
#include "sim/present/table.h"

namespace cp::cli {
namespace {

TEST(Text, ControlCharactersAreShownAndNotObeyed) {
  EXPECT_EQ(printable("a\tb\n\u00e4 \u00a0"), "a\tb\n\u00e4 \u00a0");
  EXPECT_EQ(printable("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(printable("\xc2"), "\xc2");
}

TEST(Units, AreReadable) {
  EXPECT_EQ(sim::human_us(0), "0 us");
  EXPECT_EQ(sim::human_us(12.34), "12.3 us");
  EXPECT_EQ(sim::human_us(1234), "1.23 ms");
  EXPECT_EQ(sim::human_us(4.5e6), "4.5 s");
  EXPECT_EQ(sim::human_us(1e20), "27777777777 h 47 min");
  EXPECT_EQ(sim::human_us(1.5e21), "1.5e+15 s");
  EXPECT_EQ(sim::human_us(1e40), "1e+34 s");  // no whole number of 64 bits
  EXPECT_EQ(sim::human_us(999'700), "1 s");
  EXPECT_EQ(sim::human_us(999'500), "1 s");
  EXPECT_EQ(sim::human_seconds(0.9997), "1 s");
  EXPECT_EQ(sim::human_seconds(0.9994), "999 ms");
  EXPECT_EQ(sim::human_seconds(0.25), "250 ms");
  EXPECT_EQ(sim::human_seconds(125.4), "2 min 5 s");
  EXPECT_EQ(sim::human_seconds(7199), "119 min 59 s");
  EXPECT_EQ(sim::human_seconds(7200), "2 h 0 min");
  EXPECT_EQ(sim::human_seconds(217'539), "60 h 26 min");
  EXPECT_EQ(sim::human_count(0), "0");
  EXPECT_EQ(sim::human_count(999), "999");
  EXPECT_EQ(sim::human_count(1000), "1,000");
  EXPECT_EQ(sim::human_count(-1234567), "-1,234,567");
  EXPECT_EQ(sim::human_count(-123), "-123");
}

// The rule that sim/base/number_text.h states.
TEST(Units, ADurationHasOneForm) {
  const struct {
    double us;
    const char* text;
  } durations[] = {
      {0.4567, "0.457 us"},       {812, "812 us"},       {999.4, "999 us"},         {999.6, "1 ms"},
      {45'100, "45.1 ms"},        {1e6, "1 s"},          {3.214e6, "3.21 s"},       {59.9e6, "59.9 s"},
      {119.4e6, "119 s"},         {120e6, "2 min 0 s"},  {156e6, "2 min 36 s"},     {3040e6, "50 min 40 s"},
      {7199.4e6, "119 min 59 s"}, {7200e6, "2 h 0 min"}, {217'539e6, "60 h 26 min"}};
  for (const auto& [us, text] : durations) {
    EXPECT_EQ(sim::human_us(us), text);
    EXPECT_EQ(sim::human_seconds(us / 1e6), text);
  }
}

TEST(Units, BothEndsOfAnIntervalHaveTheFormOfTheLonger) {
  EXPECT_EQ(sim::human_interval(13'900, 17'600), "13.9 ms to 17.6 ms");
  EXPECT_EQ(sim::human_interval(100e6, 119e6), "100 s to 119 s");
  EXPECT_EQ(sim::human_interval(109e6, 202e6), "1 min 49 s to 3 min 22 s");
  EXPECT_EQ(sim::human_interval(45e6, 202e6), "45 s to 3 min 22 s") << "no minute in it";
  EXPECT_EQ(sim::human_interval(6000e6, 9000e6), "100 min 0 s to 2 h 30 min");
}

TEST(Units, AColumnHasOneUnit) {
  const sim::TimeColumn ms(45'140);
  EXPECT_EQ(ms.head("TTFT"), "TTFT, ms");
  EXPECT_EQ(ms.of(45'140), "45.1");
  EXPECT_EQ(ms.of(12.1e6), "12100.0");
  EXPECT_EQ(sim::TimeColumn(812).head("step"), "step, us");
  EXPECT_EQ(sim::TimeColumn(156e6).head("step"), "step, s");
  EXPECT_EQ(sim::TimeColumn(156e6).of(3040e6), "3040");
  EXPECT_EQ(sim::TimeColumn(217'539e6).head("step"), "step, h");
  EXPECT_EQ(sim::TimeColumn(217'539e6).of(217'539e6), "60.4");
}

TEST(Table, AlignsItsColumns) {
  sim::Table table({{"step", sim::Align::right}, {"kind"}, {"time", sim::Align::right}});
  table.add_row({"1", "all_gather", "2 us"});
  table.add_row({"12", "µ", "10 us"});
  EXPECT_EQ(table.text(),
            "step  kind         time\n"
            "   1  all_gather   2 us\n"
            "  12  µ           10 us\n");
}

TEST(Table, LinesEndWithTheirLastLetter) {
  sim::Table table({{"a"}, {"b"}});
  table.add_row({"long", ""});
  EXPECT_EQ(table.text(), "a     b\nlong\n");
}

}  // namespace
}  // namespace cp::cli
