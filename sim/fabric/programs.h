// Programs: which collectives each rank is going to issue, and who differs from the others. What a failed run
// is blamed on.
//
// A rank that left a collective out waits, when all stand still, in the next one like everybody else: the
// chain of who waits for whom begins with a victim as often as with the culprit. So the ranks' whole programs
// are compared, group by group, as their plans state them: at the first position where the members of a group
// have different collectives, who has another one than most is at fault.
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
  DType dtype = DType::f32;  // f32 for an exchange, whose transfers have each their own
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
  struct Part {  // of a Repeat, or a run of steps outside of one
    std::int64_t count = 1;
    std::vector<Entry> entries;
  };
  std::vector<Part> parts;
};

// A rank's program, as far as it is known. Nobody: its body has not come to a plan yet.
struct KnownProgram {
  bool is_known = false;
  int prepared = 0;                            // plans in this run
  std::shared_ptr<const RankProgram> program;  // of the latest; null: the rank has issued nothing
};

struct Diagnosis {
  Dissent dissent;
  std::string
      text;  // "rank 2 has all_gather of 4 f32 as collective #1 on tp[0,1,2], where ranks 0, 1 have ..."
  ErrorFacts facts() const;
  std::string operation, group;
  std::int64_t sequence = -1;  // since the plans began
};

// Where the programs of a group's members part. Groups with a member whose program is not known are left out,
// and so is all when ranks are in different plans. Nothing: the programs agree.
std::optional<Diagnosis> diagnose_programs(std::span<const std::unique_ptr<Communicator>> communicators,
                                           std::span<const KnownProgram> by_rank);

// For programs that agree in each group: who issues the collectives of two of these groups in another order
// than most of the ranks that have both. Nothing: no two ranks that have the same two groups differ.
std::optional<Diagnosis> diagnose_order(std::span<const Communicator* const> communicators,
                                        std::span<const KnownProgram> by_rank);

}  // namespace cp::sim
