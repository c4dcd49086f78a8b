// Programs: which collectives each rank is going to issue, and which rank differs from the others. A failed
// run is blamed on that rank.
//
// The waits alone do not tell who is to blame. A rank that left a collective out waits in the next one like
// all others, so the chain of waits begins with a victim as often as with the culprit. Therefore the whole
// programs of the ranks are compared, group by group, as their plans state them. At the first position where
// the members of a group have different collectives, the ranks that differ from the majority are at fault.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/plan/dissent.h"
#include "sim/fabric/call.h"
#include "sim/fabric/communicator.h"

namespace cp::sim {

// What all members of a group must agree on.
struct CallArguments {
  Operation operation = Operation::all_gather;
  DType dtype = DType::f32;  // f32 for an exchange, each of whose transfers has a dtype of its own
  std::optional<ReduceOp> reduction = {};
  std::int32_t root = -1;
  std::int64_t count = 0;
  Digest counts = {};  // of an exchange
  bool operator==(const CallArguments&) const = default;
};
CallArguments arguments_of(const Call& call);
CallArguments arguments_of(const Plan& plan, const Collective& collective, std::int32_t group_size);
std::string to_string(const CallArguments& arguments);  // "all_reduce of 8 f32 by sum"

// The collectives of one plan in the order in which they are launched.
struct RankProgram {
  struct Entry {
    const Communicator* communicator = nullptr;
    CallArguments arguments;
  };
  struct Part {  // the steps of one Repeat, or a run of steps outside of any Repeat
    std::int64_t count = 1;
    std::vector<Entry> entries;
  };
  std::vector<Part> parts;
};

// A rank's program, as far as it is known.
struct KnownProgram {
  bool is_known = false;                       // false if the rank's body has not prepared a plan yet
  int prepared = 0;                            // how many plans it has prepared in this run
  std::shared_ptr<const RankProgram> program;  // of the latest plan; null if the rank has issued nothing
};

struct Diagnosis {
  Dissent dissent;
  // "rank 2 has all_gather of 4 f32 as collective #1 on tp[0,1,2], where ranks 0, 1 have ..."
  std::string text;
  ErrorFacts facts() const;
  std::string operation, group;
  std::int64_t sequence = -1;  // the collective's number on its group since the plans began
};

// Finds where the programs of the members of a group differ first. Groups with a member whose program is not
// known are skipped; if ranks are in different plans, all groups are. Returns nothing if the programs agree.
std::optional<Diagnosis> diagnose_programs(std::span<const std::unique_ptr<Communicator>> communicators,
                                           std::span<const KnownProgram> by_rank);

// For programs that agree within each group: finds the ranks that issue the collectives of two groups in
// another order than most ranks that are in both. Returns nothing if all such ranks have the same order.
std::optional<Diagnosis> diagnose_order(std::span<const Communicator* const> communicators,
                                        std::span<const KnownProgram> by_rank);

}  // namespace cp::sim
