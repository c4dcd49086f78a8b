// Reading what nccl-tests prints.
#include "sim/accuracy/calibrate/nccl_output.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string output_error(const std::string& text) {
  try {
    read_nccl_output(text, "out.txt");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "(no error)";
}

constexpr const char* kHeader =
    "#                                                              out-of-place                       "
    "in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   "
    "busbw "
    "#wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  "
    "(GB/s)\n";

// Sixteen GPUs of two nodes, as all_gather_perf -b 1M -e 1G -f 4 -g 1 under mpirun prints it, logs in
// between.
std::string all_gather() {
  std::string text =
      "# Collective test starting: all_gather_perf\n"
      "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20\n"
      "#\n"
      "# Using devices\n";
  for (int rank = 0; rank < 16; ++rank) {
    text += str("#  Rank ", rank < 10 ? " " : "", rank, " Group  0 Pid ", 4711 + rank, " on      node",
                rank / 8, " device  ", rank % 8, " [0x1b] NVIDIA H800\n");
  }
  text += "node0:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n";
  text += kHeader;
  text +=
      "           0             0     float    none      -1     0.12    0.00    0.00      0     0.11    0.00 "
      "   0.00      0\n"
      "     1048576         16384     float    none      -1    48.21   21.75   20.39      0    47.03   22.30 "
      "  20.90    N/A\n"
      "node1:4720:4755 [1] NCCL INFO Channel 00/0 : 9[1] -> 10[2] via P2P/IPC\n"
      "     4194304         65536     float    none      -1    92.40   45.39   42.56    N/A    91.80   45.69 "
      "  42.83    N/A\n"
      "    16777216        262144     float    none      -1node0:4711:4790 [0] NCCL INFO comm 0x55 rank 0 "
      "nranks 16\n"
      "node1:4719:4791 [0] NCCL INFO Connected all rings\n"
      "   180.60   92.90   87.09      0   181.20   92.59   86.80      0\n"
      "  1073741824      16777216     float    none      -1   7214.0  148.84  139.54      0   7220.1  148.72 "
      " 139.42      0\r\n"
      "# Out of bounds values : 0 OK\n"
      "# Avg bus bandwidth    : 72.3950\n"
      "#\n";
  return text;
}

TEST(NcclOutput, ReadsATranscript) {
  const NcclOutput output = read_nccl_output(all_gather(), "out.txt");
  EXPECT_EQ(output.test, "all_gather_perf");
  EXPECT_EQ(output.gpus, 16);
  EXPECT_EQ(output.nodes, 2);
  ASSERT_EQ(output.rows.size(), 4U) << "not the one of size 0";
  const double bytes[] = {1048576, 4194304, 16777216, 1073741824}, us[] = {48.21, 92.40, 180.60, 7214.0};
  const double bus[] = {20.39, 42.56, 87.09, 139.54};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(output.rows[i].bytes, bytes[i]);
    EXPECT_EQ(output.rows[i].time_us, us[i]) << "out of place";
    EXPECT_EQ(output.rows[i].bus_gbps, bus[i]);
    EXPECT_DOUBLE_EQ(output.rows[i].bus_rounding, 0.005);
  }
  EXPECT_EQ(output.rows[0].where, "out.txt:26");
}

TEST(NcclOutput, ReadsRowsWithoutAnythingAround) {
  const NcclOutput output =
      read_nccl_output("1024 256 float sum -1 25.47 0.04 0.07 0 24.90 0.04 0.07 0", "out.txt");
  EXPECT_EQ(output.gpus, 0);
  EXPECT_EQ(output.nodes, 0);
  ASSERT_EQ(output.rows.size(), 1U);
  EXPECT_EQ(output.rows[0].time_us, 25.47);
}

TEST(NcclOutput, FindsColumnsByTheHeader) {
  const NcclOutput output = read_nccl_output(
      "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error\n"
      "        8192           256   float    12.50    0.66    0.57  0e+00    12.40    0.66    0.58  0e+00\n",
      "out.txt");
  ASSERT_EQ(output.rows.size(), 1U);
  EXPECT_EQ(output.rows[0].time_us, 12.5);
  EXPECT_EQ(output.rows[0].bus_gbps, 0.57);
}

TEST(NcclOutput, PassesOverTheMarksOfMpirun) {
  const NcclOutput output = read_nccl_output(
      "[1,0]<stdout>:#   Rank  0 Group  0 Pid  1 on  a device  0 [0x1b] NVIDIA H800\n"
      "[1,0]<stdout>:#   Rank  1 Group  0 Pid  2 on  b device  0 [0x1b] NVIDIA H800\n"
      "[1,0]<stdout>:    8192    2048   float    sum     -1    12.50    0.66    0.66      0\n",
      "out.txt");
  EXPECT_EQ(output.gpus, 2);
  EXPECT_EQ(output.nodes, 2);
  ASSERT_EQ(output.rows.size(), 1U);
  EXPECT_EQ(output.rows[0].bytes, 8192);
}

TEST(NcclOutput, ErrorsNameTheLine) {
  const std::string header = kHeader;
  EXPECT_EQ(
      output_error(header +
                   "  1024  256  float  sum  -1\n  2048  512  float  sum  -1  12.5  0.16  0.29  0\n"),
      "out.txt:4: the row of size 1024 is cut short: 5 values, but busbw is column 8; remove the row, or run "
      "with "
      "NCCL_DEBUG=WARN so that no log lies within the table");
  EXPECT_THAT(output_error(header + "  1024  256  float  sum  -1  12.5\n"),
              StartsWith("out.txt:4: the row of size 1024"));
  EXPECT_THAT(output_error(header + "  1024  256  float  sum  -1  12,5  0.16  0.29  0\n"),
              StartsWith("out.txt:4: time '12,5' of size 1024 is no number"));
  EXPECT_THAT(output_error(header + "  1024  256  float  sum  -1  N/A  0.16  0.29  0\n"),
              StartsWith("out.txt:4: time 'N/A' of size 1024 is no number"));
  EXPECT_THAT(output_error(header + "  1024  256  float  sum  -1  0  0.16  0.29  0\n"),
              StartsWith("out.txt:4: the time of size 1024 is 0 us; it must be above 0"));
  EXPECT_THAT(output_error(header + "  1024  256  float  sum  -1  12.5  0.16  0.29  3\n"),
              StartsWith("out.txt:4: #wrong is 3 at size 1024"));
  EXPECT_THAT(output_error("# size count type time\n"), HasSubstr("the header names no column 'algbw'"));
  EXPECT_THAT(output_error(header), StartsWith("out.txt:3: there is no row of nccl-tests"));
  EXPECT_THAT(output_error(""), StartsWith("out.txt:1: there is no row of nccl-tests"));
}

}  // namespace
}  // namespace cp::sim
