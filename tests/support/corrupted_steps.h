// Collectives that reach a device other than the executor asked for them, or with other data: comparing the
// traces with those of the simulated fabric finds each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp::testing {

constexpr int kCorruptedRanks = 3;

// The arguments of one step. Groups 0 and 1 have the same ranks and other names; buffers 0 and 1 are f32, 2
// and 3 i32.
struct CollectiveArguments {
  std::string operation;
  GroupId group = 0;
  BufferId in = 0, out = 1;
  std::int64_t in_offset = 0, out_offset = 0;
  std::int64_t count = 4;  // of a block
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 1;
  std::int32_t shift = 1;  // of an exchange: to the member so many places on
  StreamId stream = 0;
};

struct Corruption {
  std::string name;
  std::vector<CollectiveArguments> asked, given;
  std::optional<Rank> only = {};          // the rank that is given them; unset: all
  bool other_data = false;                // of that rank: its first element is another
  std::string found;                      // by comparing, on one rank at least
  std::vector<RankTrace> simulated = {};  // of what is asked, by rank
};

// Each argument of each operation, one at a time, on all ranks alike.
std::vector<Corruption> corrupted_arguments();
// Steps that change places, are left out, or come twice.
std::vector<Corruption> corrupted_orders();
// One rank alone reads, writes or holds something else: calls match, and results do not.
std::vector<Corruption> corrupted_ranks();

// Runs them on the device, as given and, to find nothing, as asked. Returns a line for each: what comparing
// found.
std::string lines_of_findings(const std::vector<Corruption>& corruptions, runtime::ProcessDevice& device);

// `said`: what lines_of_findings() returned, by rank. Returns what no rank found, in words.
std::vector<std::string> missed(const std::vector<Corruption>& corruptions,
                                const std::vector<std::string>& said);

}  // namespace cp::testing
