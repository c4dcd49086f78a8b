#include "runtime/nccl_versions.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/cudnn_abilities.h"

namespace cp::runtime {
namespace {

// Tests run in the project's folder.
std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// "2.21": without the patch.
std::string minor_of(const std::string& version) { return version.substr(0, version.rfind('.')); }

TEST(MinimumVersions, AreTheSameInCodeInCMakeAndInTheReadme) {
  const std::string nccl = minor_of(nccl_version_text(kOldestNccl)),
                    cudnn = minor_of(cudnn_version_text(cudnn_facts().front().since));
  EXPECT_THAT(text_of("cmake/FindNCCL.cmake"), ::testing::HasSubstr(str("set(NCCL_MINIMUM ", nccl, ")")));
  EXPECT_THAT(text_of("cmake/FindCudnnFrontend.cmake"),
              ::testing::HasSubstr(str("set(CUDNN_MINIMUM ", cudnn, ")")));
  EXPECT_THAT(text_of("README.md"),
              ::testing::HasSubstr(str("NCCL ", nccl, " or later, cuDNN ", cudnn, " or later")));
  EXPECT_THAT(text_of("scripts/versions"), ::testing::HasSubstr(str("NCCL = {\"", nccl, ".")));
  EXPECT_THAT(text_of("scripts/versions"), ::testing::HasSubstr(str("CUDNN = {\"", cudnn, ".")));
}

TEST(NcclVersions, AnOptionNeedsTheHeaderAndTheLibrary) {
  EXPECT_EQ(refuse_nccl_option("it", 22700, {.header = 22700, .loaded = 22700}), std::nullopt);
  EXPECT_EQ(refuse_nccl_option("it", 22700, {.header = 22707, .loaded = 23203}), std::nullopt);
  EXPECT_EQ(refuse_nccl_option("it", 22700, {.header = 22809, .loaded = 22105}),
            "it needs NCCL 2.27.0 or later, and the library found is 2.21.5, which would ignore it; leave it "
            "out, or put the folder of a newer libnccl.so.2 first in LD_LIBRARY_PATH");
  EXPECT_EQ(
      refuse_nccl_option("it", 22700, {.header = 22105, .loaded = 23203}),
      "it needs NCCL 2.27.0 or later, and this was built with the header of 2.21.5, although the library "
      "found is 2.32.3; leave it out, or build with a newer nccl.h (NCCL_ROOT)");
  // Both are too old: what is to be done first is said.
  EXPECT_EQ(refuse_nccl_option("it", 22700, {.header = 22105, .loaded = 22605}),
            "it needs NCCL 2.27.0 or later, and the library found is 2.26.5, which would ignore it; leave it "
            "out, or put the folder of a newer libnccl.so.2 first in LD_LIBRARY_PATH");
}

// The words of init.cc: of 2.28.9, and of 2.30.7 and later.
TEST(NcclVersions, TwoRanksOnOneGpuAreToldInTwoWordings) {
  EXPECT_TRUE(says_shared_gpu("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"));
  EXPECT_TRUE(says_shared_gpu(
      "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
      "configuration."));
  EXPECT_FALSE(says_shared_gpu("no GPU"));
  EXPECT_FALSE(says_shared_gpu(""));
}

}  // namespace
}  // namespace cp::runtime
