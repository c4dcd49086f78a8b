// A job that lives long does not grow: neither a rank nor, in tests/rendezvous/joined_device_test.cc, the
// server.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

TEST(CprunGrowingRank, KeepsNoMoreOfAThousandPlansThanTheirDigests) {
  const ProgramEnd end = cprun({"--nproc-per-node", "2", "--", built("growing_rank"), "1000"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const std::size_t at = end.out.find("grew by ");
  ASSERT_NE(at, std::string::npos) << end.out;
  // Tensors grow by 3.2 KB, and with them the one arena that the plans which are kept ready share. Digests of
  // plans that were compared stay, in a set: 64 bytes each, 51 KB.
  EXPECT_LT(parse_int(trim(end.out.substr(at + 8)), "bytes"), 100'000) << end.out;
}

}  // namespace
}  // namespace cp::testing
