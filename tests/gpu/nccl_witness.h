// The calls that NCCL was given, as the witness wrote them down (tests/witness), beside those that a rank's
// trace says it observed.
//
// The device's records are made of the list of calls that it issues from, so they cannot show that a call
// went to another communicator, or with another count. NCCL's own word can.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/trace.h"

namespace cp::testing {

// What one member of a communicator called, in order.
struct MemberCalls {
  using Way = std::pair<std::string, std::int32_t>;    // "Send" or "Recv", and the peer's index
  std::vector<std::string> collectives;                // "AllReduce of 64 bytes, f32"
  std::map<Way, std::vector<std::int64_t>> transfers;  // bytes
  bool empty() const { return collectives.empty() && transfers.empty(); }
};
using CommunicatorCalls = std::map<std::int32_t, MemberCalls>;  // by index in it

// By communicator. Those of one rank are left out, which NCCL does not tell of, and those without a call.
struct WitnessedCalls {
  std::map<std::string, CommunicatorCalls> communicators;  // by any name that is one communicator's own
};

// Of a rank's observed records. Transfers with the rank itself are left out, which records do not have; what
// a record has for a peer may have been several transfers.
void add_observed(const std::vector<OpRecord>& observed, Rank rank, WitnessedCalls& calls);

// A rank leaves what its trace says in the folder, and all is read again. Files of a process that makes
// several devices lie beside one another.
void write_observed(const std::string& folder, Rank rank, const std::vector<OpRecord>& observed);
WitnessedCalls read_observed(const std::string& folder);
// What the witness wrote into the folder.
WitnessedCalls read_witness(const std::string& folder);

// Returns what differs, in words; nothing where each communicator of one side is one of the other, with the
// same calls of each member.
std::string difference(const WitnessedCalls& observed, const WitnessedCalls& witnessed);

// The number of calls: collectives, and transfers as they stand there.
std::size_t count(const WitnessedCalls& calls);

}  // namespace cp::testing
