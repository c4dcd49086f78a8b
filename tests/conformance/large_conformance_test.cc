// Collectives of more than 2^31 bytes. Disabled, since each takes 4 to 9 GB of memory and some seconds;
// scripts/large runs them.
#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/execute.h"
#include "tests/conformance/device_suite.h"

namespace cp::conformance {
namespace {

constexpr std::int64_t kLargeNumel = (std::int64_t{1} << 29) + 6;  // of i32: 2^31 + 24 bytes

// Different at places that 2^31 bytes lie between, and small: sums of two do not overflow.
std::int32_t value(std::int64_t index, std::int64_t place) {
  return static_cast<std::int32_t>(((place ^ (place >> 13)) & 0xfffff) + index);
}

struct LargeCase {
  const char* collective = "";
  std::int64_t numel = 0;  // of x
  bool in_place = true;    // else x is read and y of the same size written
  std::function<Collective(GroupId group, std::int32_t index)> make;             // of buffers x = 0 and y = 1
  std::function<std::int32_t(std::int64_t index, std::int64_t place)> expected;  // x or y afterwards
};

View part(BufferId buffer, std::int64_t block, std::int64_t numel) {
  return flat_view(buffer, block * numel, numel);
}

std::vector<LargeCase> large_cases() {
  constexpr std::int64_t kHalf = kLargeNumel / 2;
  const auto sum = [](std::int64_t place) { return value(0, place) + value(1, place); };
  return {{"all_gather", 2 * kLargeNumel, true,
           [](GroupId group, std::int32_t index) {
             return AllGather{group, part(0, index, kLargeNumel), part(0, 0, 2 * kLargeNumel)};
           },
           [](std::int64_t, std::int64_t place) { return value(place / kLargeNumel, place); }},
          {"reduce_scatter", kLargeNumel, true,
           [](GroupId group, std::int32_t index) {
             return ReduceScatter{group, ReduceOp::sum, part(0, 0, kLargeNumel), part(0, index, kHalf)};
           },
           [=](std::int64_t index, std::int64_t place) {
             return place / kHalf == index ? sum(place) : value(index, place);
           }},
          {"all_reduce", kLargeNumel, true,
           [](GroupId group, std::int32_t) {
             return AllReduce{group, ReduceOp::sum, part(0, 0, kLargeNumel), part(0, 0, kLargeNumel)};
           },
           [=](std::int64_t, std::int64_t place) { return sum(place); }},
          {"broadcast", kLargeNumel, true,
           [](GroupId group, std::int32_t) {
             return Broadcast{group, 1, part(0, 0, kLargeNumel), part(0, 0, kLargeNumel)};
           },
           [](std::int64_t, std::int64_t place) { return value(1, place); }},
          {"all_to_all", kLargeNumel, false,
           [](GroupId group, std::int32_t) {
             return AllToAll{group, part(0, 0, kLargeNumel), part(1, 0, kLargeNumel)};
           },
           [](std::int64_t index, std::int64_t place) {
             return value(place / kHalf, index * kHalf + place % kHalf);
           }},
          {"exchange", kLargeNumel, false,
           [](GroupId group, std::int32_t index) {
             return Exchange{group,
                             {{1 - index, part(0, 0, kLargeNumel)}},
                             {{1 - index, part(1, 0, kLargeNumel)}},
                             counts_digest({{0, 1, kLargeNumel}, {1, 0, kLargeNumel}})};
           },
           [](std::int64_t index, std::int64_t place) { return value(1 - index, place); }}};
}

// The first wrong place, in words.
std::string run_large(const LargeCase& large, Rank rank, Device& device, PlanBuilder b) {
  const GroupId group = b.group("pair", {0, 1});
  b.inout("x", DType::i32, large.numel);
  if (!large.in_place) b.output("y", DType::i32, large.numel);
  b.add(b.stream("s"), large.make(group, rank));
  const Plan plan = std::move(b).build({});
  const auto numel = static_cast<std::size_t>(large.numel);
  std::unique_ptr<std::int32_t[]> buffers[2] = {std::make_unique_for_overwrite<std::int32_t[]>(numel),
                                                nullptr};
  if (!large.in_place) buffers[1] = std::make_unique_for_overwrite<std::int32_t[]>(numel);
  for (std::int64_t i = 0; i < large.numel; ++i) buffers[0][static_cast<std::size_t>(i)] = value(rank, i);
  Bindings bindings;
  for (BufferId id = 0; id < static_cast<BufferId>(plan.buffers.size()); ++id)
    bindings.push_back({id, buffers[id].get(), 4 * large.numel});
  execute(plan, device, bindings);
  const std::int32_t* result = buffers[large.in_place ? 0 : 1].get();
  // Every 61st, the last one among them: what a library cuts off or leaves out is longer.
  for (std::int64_t i = (large.numel - 1) % 61; i < large.numel; i += 61) {
    if (result[i] != large.expected(rank, i))
      return str("rank ", rank, ", place ", i, ": ", result[i], ", not ", large.expected(rank, i));
  }
  return "";
}

TEST_P(DeviceConformance, DISABLED_MoreThanTwoGibibytes) {
  if (!GetParam().host_memory) GTEST_SKIP() << "the device's memory is not the host's";
  for (const LargeCase& large : large_cases()) {
    if (!has(large.collective)) continue;
    SCOPED_TRACE(large.collective);
    world().run([&](Rank rank, Device& device) {
      if (rank >= 2) return;
      EXPECT_EQ(run_large(large, rank, device, builder(rank)), "");
    });
  }
}

}  // namespace
}  // namespace cp::conformance
