// Sets of plans that are right, small, and differ in what they use: the ground on which mutations are tried.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::testing {

// Shards of different sizes, padded to equal blocks, gathered and unpacked.
std::vector<Plan> padded_all_gather(const std::vector<std::int64_t>& sizes);

// Every rank sums all ranks' vectors: they travel around a ring, one hop ahead of the sum on another stream.
std::vector<Plan> exchange_ring(int ranks, std::int64_t numel);

// Partial(sum) to a shard of sizes[i] elements on rank i: an all-to-all-v, then a sum in rank order.
std::vector<Plan> uneven_reduce(const std::vector<std::int64_t>& sizes);

// `layers` weights are gathered one after the other into two slots, ahead of the sum that uses them on
// another stream.
std::vector<Plan> double_buffered(int ranks, std::int64_t numel, std::int64_t layers);

// A mesh of 2 x 2 ranks: sums along rows, broadcasts along columns, scatters and transposes, on two streams;
// two temporaries share their bytes.
std::vector<Plan> grid(std::int64_t numel);

struct Example {
  std::string name;
  std::function<std::vector<Plan>()> make;
};
const std::vector<Example>& examples();

}  // namespace cp::testing
