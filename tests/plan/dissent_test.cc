#include "shared/plan/dissent.h"

#include <gtest/gtest.h>

namespace cp {
namespace {

TEST(Dissent, WhoeverIsNotOfTheMajority) {
  EXPECT_EQ(dissent_of({{"a", {0, 1, 2}}}), Dissent{});
  EXPECT_EQ(dissent_of({{"a", {0, 2, 3}}, {"b", {1}}}), (Dissent{{1}, false}));
  EXPECT_EQ(dissent_of({{"a", {3}}, {"b", {0, 4}}, {"c", {1}}}), (Dissent{{1, 3}, false}));
  EXPECT_EQ(dissent_of({{"a", {1}}, {"b", {0}}}), (Dissent{{0, 1}, true}));
  EXPECT_EQ(dissent_of({{"a", {1, 2}}, {"b", {0, 4}}, {"c", {3}}}), (Dissent{{0, 1, 2, 3, 4}, true}));
}

TEST(Dissent, WhatFitsTwoFindings) {
  const Dissent nobody, one{{2}, false}, tie{{1, 2}, true}, other_tie{{2, 5}, true}, apart{{7}, false};
  EXPECT_EQ(fit_both(nobody, tie), tie);
  EXPECT_EQ(fit_both(tie, nobody), tie);
  EXPECT_EQ(fit_both(one, tie), one);
  EXPECT_EQ(fit_both(tie, other_tie), one);
  EXPECT_EQ(fit_both(tie, tie), tie);
  EXPECT_EQ(fit_both(one, apart), (Dissent{{2, 7}, false}));
  EXPECT_EQ(fit_both(apart, tie), (Dissent{{1, 2, 7}, true}));
}

}  // namespace
}  // namespace cp
