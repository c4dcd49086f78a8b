// Each argument of each collective, wrong on one rank: the checker refuses it, and digests over the control
// plane differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "tests/plan/collective_disagreements.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

void expect_refused(const std::vector<Disagreement>& table, std::size_t least) {
  EXPECT_GE(table.size(), least);  // the table is about something
  for (const Disagreement& row : table) {
    SCOPED_TRACE(row.what);
    EXPECT_NO_THROW(check(row.right));
    try {
      check(row.wrong);
      ADD_FAILURE() << "check() found nothing";
    } catch (const CollectiveMismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr(str("rank ", row.odd)));
    } catch (const Error& error) {
      ADD_FAILURE() << name(error.kind()) << ": " << error.what();
    }
  }
}

TEST(CheckArguments, OfEachCollectiveAgree) {
  // Five operations with four others, four dtypes and three counts each; two with twenty pairs of reductions;
  // six pairs of roots; each wrong on each of three ranks.
  expect_refused(disagreements_of_calls(), 3 * (5 * (4 + 4 + 3) + 2 * 20 + 6));
}
TEST(CheckArguments, OfEachTransferAgree) { expect_refused(disagreements_of_exchanges(), 3 * 2 * 25); }
TEST(CheckArguments, SequencesAgree) { expect_refused(disagreements_of_sequences(), 3 * 12); }

void expect_digests_differ(const std::vector<Disagreement>& table) {
  const auto digest_of = [](const std::vector<Plan>& plans, Rank rank) {
    return collective_digest(plans[static_cast<std::size_t>(rank)], 0);
  };
  for (const Disagreement& row : table) {
    for (Rank rank = 0; rank < kMembers; ++rank) {
      EXPECT_EQ(digest_of(row.right, rank), digest_of(row.right, 0)) << row.what;
      EXPECT_EQ(digest_of(row.wrong, rank) == digest_of(row.right, 0), rank != row.odd) << row.what;
    }
  }
}

TEST(CollectiveDigestArguments, OfEachCollectiveCount) { expect_digests_differ(disagreements_of_calls()); }
TEST(CollectiveDigestArguments, SequencesCount) { expect_digests_differ(disagreements_of_sequences()); }
TEST(CollectiveDigestArguments, OfExchangesTheMatrixCounts) {
  std::vector<Disagreement> table = disagreements_of_exchanges();
  std::erase_if(table, [](const Disagreement& row) { return row.what.find("digest") == std::string::npos; });
  EXPECT_EQ(table.size(), 6U);
  expect_digests_differ(table);
}

}  // namespace
}  // namespace cp::testing
