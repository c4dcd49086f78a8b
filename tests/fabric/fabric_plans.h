// Plans and bodies that the fabric's tests share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"

namespace cp::sim {

// Ranks of the tests for which any small number will do.
constexpr int kWorldSize = 4;

inline FabricOptions baton(BatonOrder::Kind kind, std::uint64_t seed = 0) {
  return {.schedule = Schedule::baton, .seed = seed, .order = {.kind = kind}};
}

inline std::string schedule_name(const ::testing::TestParamInfo<Schedule>& info) {
  return info.param == Schedule::parallel ? "Parallel" : "Baton";
}

using AddSteps = std::function<void(PlanBuilder&, Rank)>;

inline std::vector<Rank> ranks_up_to(int world_size) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  return ranks;
}

// One plan for each rank of the world.
inline std::vector<Plan> plans_of(int world_size, const AddSteps& add_steps) {
  std::vector<Plan> plans;
  for (const Rank rank : ranks_up_to(world_size)) {
    PlanBuilder builder(rank, host_target());
    add_steps(builder, rank);
    plans.push_back(std::move(builder).build({}));
  }
  return plans;
}

inline void execute_all(Fabric& fabric, const std::vector<Plan>& plans) {
  fabric.run([&](Rank rank, Device& device) { execute(plans[static_cast<std::size_t>(rank)], device); });
}

// Adds an all_reduce of `numel` elements on the group, with buffers of its own.
inline void add_all_reduce(PlanBuilder& builder, const std::string& group, const std::vector<Rank>& ranks,
                           std::int64_t numel = 4, const std::string& stream = "s") {
  const BufferId data = builder.inout("data", DType::i64, numel);
  const View view = flat_view(data, 0, numel);
  builder.add(builder.stream(stream), AllReduce{builder.group(group, ranks), ReduceOp::sum, view, view});
}

// A plan in which every rank of the world sums with all others: for "does it still work?".
inline std::vector<Plan> good_plans(int world_size) {
  return plans_of(world_size, [&](PlanBuilder& builder, Rank) {
    add_all_reduce(builder, "world", ranks_up_to(world_size));
  });
}

// The message of the E that f throws.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace cp::sim
