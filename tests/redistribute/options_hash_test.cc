// Plans are kept by the digest of what they were made from: a field that did not count would give out a stale
// one.
#include <set>

#include <gtest/gtest.h>

#include "shared/redistribute/gradient.h"
#include "shared/redistribute/redistribution.h"
#include "tests/plan/every_field.h"

namespace cp {
namespace {

template <class Options>
Digest digest_of(const Options& options) {
  Hasher hasher;
  return hash(hasher, options).digest();
}

// One change for each field of the options, those of the cost model among them. All fields stand in the
// bindings, so that one which is added does not compile here until it is changed too.
template <class Change>
void change_each(test::Variations<Change>& change, RedistributeOptions& options) {
  auto& [cost, objective, max_memory_factor, travel_dtype, partial_rule] = options;
  auto& [step_latency_us, peer_latency_us, local_latency_us, memory_gbps, all_gather, reduce_scatter,
         all_reduce, all_to_all, exchange, node_gbps, network_gbps, ranks_per_node, axis_gbps] = cost;
  for (double* figure : {&step_latency_us, &peer_latency_us, &local_latency_us, &memory_gbps, &all_gather,
                         &reduce_scatter, &all_reduce, &all_to_all, &exchange, &node_gbps, &network_gbps})
    change.of(*figure);
  change.of(ranks_per_node);
  change.with(axis_gbps, {{"tp", 100.0}});
  change.with(axis_gbps, {{"dp", 100.0}});
  change.with(axis_gbps, {{"tp", 101.0}});
  change.with(objective, Objective::bytes);
  change.of(max_memory_factor);
  change.with(travel_dtype, std::optional(DType::f32));  // the first of them, unlike none
  change.with(travel_dtype, std::optional(DType::bf16));
  change.with(partial_rule, PartialRule::divide);
}

constexpr std::size_t kRedistributeChanges = 20;

TEST(OptionsHash, EveryFieldOfRedistributeOptionsCounts) {
  RedistributeOptions options;
  std::set<Digest> seen = {digest_of(options)};
  const auto note = [&] { EXPECT_TRUE(seen.insert(digest_of(options)).second) << "change " << seen.size(); };
  test::Variations change(note);
  change_each(change, options);
  EXPECT_EQ(seen.size(), 1 + kRedistributeChanges);
  EXPECT_EQ(digest_of(options), digest_of(RedistributeOptions{}));  // equal for equal ones
}

TEST(OptionsHash, EveryFieldOfGradientOptionsCounts) {
  GradientOptions options;
  std::set<Digest> seen = {digest_of(options)};
  const auto note = [&] { EXPECT_TRUE(seen.insert(digest_of(options)).second) << "change " << seen.size(); };
  test::Variations change(note);
  auto& [redistribute, rule, backward_dtype, scale] = options;
  change_each(change, redistribute);
  change.with(rule, GradientRule::replicated);
  change.with(backward_dtype, std::optional(DType::f32));
  change.with(backward_dtype, std::optional(DType::bf16));
  change.of(scale);
  EXPECT_EQ(seen.size(), 1 + kRedistributeChanges + 4);
}

}  // namespace
}  // namespace cp
