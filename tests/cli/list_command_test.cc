// cpsim list, from the outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ListCommand, NamesWhatFlagsTake) {
  const Finished all = cpsim({"list"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  for (const char* name :
       {"clusters: --cluster", "  dgx-h100\n", "  llama-3.1-8b\n", "  torchtitan\n", "  ulysses_ring\n"})
    EXPECT_THAT(all.out, HasSubstr(name));
}

TEST(ListCommand, OneKindIsANameALine) {
  const Finished clusters = cpsim({"list", "clusters"});
  EXPECT_EQ(clusters.exit_code, 0) << clusters.err;
  EXPECT_THAT("\n" + clusters.out, HasSubstr("\ndgx-h100\n"));
  EXPECT_THAT(clusters.out, Not(HasSubstr("llama")));
  EXPECT_THAT(clusters.out, Not(HasSubstr(" ")));
}

TEST(ListCommand, SaysWhatThereIs) {
  const Finished none = cpsim({"list", "model"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(
      none.err,
      HasSubstr("there is no list of 'model'; the nearest one is models; use one of: clusters, models"));
  EXPECT_THAT(cpsim({"list", "foo"}).err,
              HasSubstr("there is no list of 'foo'; use one of: clusters, models"))
      << "none is near";
}

}  // namespace
}  // namespace cp::cli
