#include "shared/plan/plan_cache.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp {
namespace {

Digest key(int number) { return Hasher().add(number).digest(); }

class Cache {
 public:
  explicit Cache(std::size_t most)
      : cache_(most, [this](const Plan& plan) { used_first_.push_back(plan.self); }) {}

  // The plan of rank `number` stands for one of that number.
  Rank get(int number) {
    return cache_
        .get(key(number),
             [&] {
               ++made_;
               Plan plan;
               plan.self = number;
               return plan;
             })
        .self;
  }
  int made() const { return made_; }
  std::size_t size() const { return cache_.size(); }
  const std::vector<Rank>& used_first() const { return used_first_; }

 private:
  int made_ = 0;
  std::vector<Rank> used_first_;
  PlanCache cache_;
};

TEST(PlanCache, MakesEachPlanOnce) {
  Cache cache(4);
  for (const int number : {1, 2, 1, 2, 1}) EXPECT_EQ(cache.get(number), number);
  EXPECT_EQ(cache.made(), 2);
  EXPECT_EQ(cache.used_first(), (std::vector<Rank>{1, 2}));
}

TEST(PlanCache, TheLeastRecentlyUsedGoesFirst) {
  Cache cache(2);
  for (const int number : {1, 2, 1, 3}) cache.get(number);  // 2 goes
  EXPECT_EQ(cache.size(), 2U);
  cache.get(1);
  EXPECT_EQ(cache.made(), 3);
  cache.get(2);
  EXPECT_EQ(cache.made(), 4);
  EXPECT_EQ(cache.used_first(), (std::vector<Rank>{1, 2, 3, 2}));
}

TEST(PlanCache, KeepsTwoAtLeast) {
  Cache cache(0);
  cache.get(1), cache.get(2), cache.get(1);
  EXPECT_EQ(cache.made(), 2);
}

TEST(PlanCache, KeepsNothingOfWhatFails) {
  bool refuse = true;
  PlanCache cache(4, [&](const Plan&) {
    if (refuse) throw CollectiveMismatch("they differ");
  });
  EXPECT_THROW(cache.get(key(1), [] { return Plan(); }), CollectiveMismatch);
  EXPECT_THROW(cache.get(key(1), []() -> Plan { throw InvalidInput("no plan"); }), InvalidInput);
  EXPECT_EQ(cache.size(), 0U);
  refuse = false;
  cache.get(key(1), [] { return Plan(); });
  EXPECT_EQ(cache.size(), 1U);
}

}  // namespace
}  // namespace cp
