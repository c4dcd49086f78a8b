// Damaged plans of redistributions: refused by the checker, or shown by the data.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "shared/redistribute/lower.h"
#include "sim/fuzz/mutate/plan_mutations.h"
#include "tests/property/redistribute_cases.h"
#include "tests/support/any_case.h"
#include "tests/support/layout_generators.h"
#include "tests/support/shard_data.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

using sim::Mutation;
using sim::MutationKind;

enum class DamageVerdict : std::uint8_t { refused, wrong_data, harmless };

struct DamageTrial {
  DamageVerdict verdict = DamageVerdict::harmless;
  Mutation mutation;
};

// What becomes of damaged plans. Throws what the fabric throws while plans run that the checker let pass, and
// CheckFailure when interleavings differ: both would be the checker's fault. That a device refuses to prepare
// a plan is not.
DamageTrial judge(const Redistribution& planned, const Mutation& mutation, const std::vector<Plan>& damaged,
                  const Shards& source, const Shards& expected) {
  CheckLimits limits;
  limits.peak_bytes = planned.peak_bytes;
  try {
    check(damaged, limits);
  } catch (const Error&) {
    return {DamageVerdict::refused, mutation};
  }
  std::optional<Shards> result;
  try {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const Shards now = run_plans(damaged, source, {.schedule = sim::Schedule::baton, .seed = seed});
      if (result && *result != now)
        throw CheckFailure("two interleavings of plans that check() passed give different results");
      result = now;
    }
  } catch (const InvalidInput&) {
    return {DamageVerdict::refused, mutation};
  }
  return {*result == expected ? DamageVerdict::harmless : DamageVerdict::wrong_data, mutation};
}

std::optional<DamageTrial> attempt(const RedistributeCase& request, MutationKind kind, std::uint64_t seed) {
  const Redistribution planned = plan_of(request);
  std::vector<Plan> plans = lower_all(planned);
  const Shards source = make_shards(request.source, [&](std::int64_t element, std::int64_t c) {
    return small_integer(seed, element, c, reduction(request.source) == ReduceOp::product ? 3 : 1000);
  });
  const Shards expected = run_plans(plans, source);
  std::mt19937_64 random(seed);
  const auto place = static_cast<std::int64_t>(random() >> 1);
  const std::optional<Mutation> mutation = sim::mutate(plans, kind, place, random());
  if (!mutation) return std::nullopt;
  return judge(planned, *mutation, plans, source, expected);
}

RedistributeCase integer_case(RedistributeCase request) {
  request.options.max_memory_factor = 1;
  request.options.travel_dtype.reset();
  for (Layout* layout : {&request.source, &request.target}) {
    layout->dtype = DType::i64;
    for (Placement& placement : layout->placements) {
      auto* partial = std::get_if<Partial>(&placement);
      if (partial != nullptr && partial->op == ReduceOp::avg) partial->op = ReduceOp::sum;
    }
  }
  return request;
}

// Damage is refused by the checker or shows in the data, and where the mutation cannot change what the plans
// mean, the checker alone must find it. A plan that it passes runs to its end on the fabric, with one result.
RC_GTEST_PROP(RedistributeMutation, IsCaughtOrHarmless, (std::uint64_t seed)) {
  const RedistributeCase request = integer_case(*any_case({.max_ranks = 8}));
  const auto kind = pick("kind", rc::gen::inRange<std::size_t>(0, sim::all_mutations().size()));
  const std::optional<DamageTrial> trial = attempt(request, sim::all_mutations()[kind].kind, seed);
  RC_PRE(trial.has_value());
  RC_LOG() << trial->mutation.text << "\n";
  RC_TAG(trial->verdict == DamageVerdict::refused      ? "refused"
         : trial->verdict == DamageVerdict::wrong_data ? "wrong data"
                                                       : "harmless");
  RC_ASSERT(trial->verdict != DamageVerdict::wrong_data || trial->mutation.may_change_meaning);
}

// That the property above is about something: each kind of damage that finds a place is refused somewhere, or
// shows in the data.
TEST(RedistributeMutation, EachKindIsCaughtSomewhere) {
  for (const sim::MutationInfo& info : sim::all_mutations()) {
    std::map<DamageVerdict, int> tally;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const RedistributeCase request = integer_case(case_of_seed(seed, {.tight = false, .max_ranks = 6}));
      const std::optional<DamageTrial> trial = attempt(request, info.kind, seed);
      if (!trial) continue;
      ++tally[trial->verdict];
      EXPECT_TRUE(trial->verdict != DamageVerdict::wrong_data || trial->mutation.may_change_meaning)
          << "seed " << seed << ": " << trial->mutation.text;
    }
    if (tally.empty()) continue;  // plans of redistributions have one stream, hence no edges to drop
    EXPECT_GT(tally[DamageVerdict::refused] + tally[DamageVerdict::wrong_data], 0) << info.name;
    std::printf("%-28s refused %2d, wrong data %2d, harmless %2d\n", std::string(info.name).c_str(),
                tally[DamageVerdict::refused], tally[DamageVerdict::wrong_data],
                tally[DamageVerdict::harmless]);
  }
}

}  // namespace
}  // namespace cp::testing
