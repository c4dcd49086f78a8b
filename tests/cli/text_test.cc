// The small pieces that reports are made of.
#include <gtest/gtest.h>

#include "cli/common/printable.h"
#include "sim/present/number_text.h"
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
