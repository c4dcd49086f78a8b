#include "shared/base/utc.h"

#include <gtest/gtest.h>

namespace cp {
namespace {

TEST(Utc, OfAnyTime) {
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(utc_text(std::int64_t{1'709'210'096} * 1'000'000'000 + 999'999'999), "2024-02-29T12:34:56Z");
  EXPECT_EQ(utc_text(-1), "1969-12-31T23:59:59Z");
}

}  // namespace
}  // namespace cp
