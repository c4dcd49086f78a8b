// Each argument of each collective, wrong on one rank: the fabric refuses it before any data move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/fabric/fabric_plans.h"
#include "tests/plan/collective_disagreements.h"

namespace cp::sim {
namespace {

using cp::testing::Disagreement;
using ::testing::HasSubstr;

void expect_refused(const std::vector<Disagreement>& table) {
  Fabric fabric(cp::testing::kMembers, {.schedule = Schedule::baton});
  for (const Disagreement& row : table) {
    SCOPED_TRACE(row.what);
    EXPECT_THAT(message_of<CollectiveMismatch>([&] { execute_all(fabric, row.wrong); }),
                HasSubstr(str("rank ", row.odd)));
    EXPECT_NO_THROW(execute_all(fabric, row.right));
  }
}

TEST(FabricArguments, OfEachCollectiveAgree) { expect_refused(cp::testing::disagreements_of_calls()); }
TEST(FabricArguments, OfEachTransferAgree) { expect_refused(cp::testing::disagreements_of_exchanges()); }

}  // namespace
}  // namespace cp::sim
