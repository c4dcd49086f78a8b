// A trace is what a run leaves behind, as plain data: what was asked for, what happened at the boundary of
// the library, and what came out.
//
// Each device rebuilds `observed` from the arguments of the calls that it makes (the fabric: from its
// deliveries), and never copies it from the step. Several calls that a back end makes for one step are added
// up, so that two worlds compare equal if they did the same thing by different calls. Order is compared for
// each rank and stream; times are never compared for equality.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/plan/plan.h"

namespace cp {

// Checksums of what one rank sent in a collective and of what reached it (shared/base/checksum.h), by peer:
// an entry for each member of the group, 0 if there was no transfer. If there were several transfers with one
// peer, they are folded in an order that both ends share.
struct PayloadChecksums {
  std::vector<std::uint64_t> sent, received;
  std::uint64_t result = 0;  // of an all_reduce's output, part by part as it was made or came; 0: none
  bool operator==(const PayloadChecksums&) const = default;
};

// One operation on one stream of one rank. A kernel has only `stream`, `operation` and `sent` = {bytes
// written}. The dtype of an Exchange is that of its first send; without sends that of its first receive;
// without either f32.
struct OpRecord {
  StreamId stream = 0;
  std::string operation;
  Group group;
  std::int64_t sequence = -1;  // number of the collective on its group; the trace begins with 0
  DType dtype = DType::f32;
  std::optional<ReduceOp> reduction;
  std::int32_t root = -1;                    // index in the group
  std::vector<std::int64_t> sent, received;  // bytes for each peer, as Volume counts them
  // For an observed collective whose payloads were digested (shared/plan/transfer_check.h); else absent.
  std::optional<PayloadChecksums> checksums = {};

  // Does not compare checksums, which a run may have or not. They are compared between sender and receiver.
  bool operator==(const OpRecord& other) const {
    return stream == other.stream && operation == other.operation && group == other.group &&
           sequence == other.sequence && dtype == other.dtype && reduction == other.reduction &&
           root == other.root && sent == other.sent && received == other.received;
  }
};

// "all_gather #3 on cp[0,1,2,3] f32 ..."
std::string to_string(const OpRecord& record);

// When one operation ran.
struct TimedOp {
  StreamId stream = 0;
  std::string operation;                  // that of the record
  std::string label;                      // that of the step; often empty
  std::int64_t begin_ns = 0, end_ns = 0;  // since the rank's start; 0 <= begin <= end <= kMaxTraceNs
  bool operator==(const TimedOp&) const = default;
};
// Chosen: 31 years; the sum of two still fits into 64 bits.
inline constexpr std::int64_t kMaxTraceNs = 1'000'000'000'000'000'000;

// Where and with what a rank ran. These are plain numbers and texts, because this layer has neither a clock
// nor a host's name; the layer above fills them in.
struct Environment {
  std::string host;  // its name, or what stands for it: "host-1a2b3c4d" (traces/environment.h)
  bool host_is_hashed = false;
  std::int64_t pid = 0;
  std::string backend;                           // "fabric", "gloo", "nccl"
  std::map<std::string, std::string> libraries;  // versions, by name
  std::string cpsim_version;
  std::int32_t world_size = 0;
  std::int64_t start_unix_ns = 0;         // of the rank, UTC
  std::optional<Digest> scenario_digest;  // of the scenario's text
  bool operator==(const Environment&) const = default;
};

struct RankTrace {
  Rank rank = 0;
  std::vector<OpRecord> issued;           // in issue order
  std::vector<OpRecord> observed;         // collectives only; on each stream in order of completion
  std::map<std::string, Digest> digests;  // by buffer name: outputs that are exact in every world
  // Worlds and runs differ in what follows, so operator== leaves it out.
  //
  // The i-th time of a stream belongs to the stream's i-th record: one list has the times of steps as their
  // streams ran them, the other those of the library's calls. There may be fewer times than records.
  std::vector<TimedOp> issued_times = {}, observed_times = {};
  // From the run's common start to the rank's start; |offset| <= kMaxTraceNs.
  std::int64_t clock_offset_ns = 0;
  std::optional<Environment> environment = {};

  bool operator==(const RankTrace& other) const {
    return rank == other.rank && issued == other.issued && observed == other.observed &&
           digests == other.digests;
  }
};

// The record that the executor writes for a step. `sequence` counts the collectives of each group.
OpRecord issued_record(const Plan& plan, const Step& step, std::int64_t sequence);

// The records of each stream, in order.
using StreamRecords = std::map<StreamId, std::vector<const OpRecord*>>;
StreamRecords records_by_stream(const std::vector<OpRecord>& records, bool collectives_only);

// Where the records of two worlds diverge: the first stream on which they differ, and the first position
// there.
struct Divergence {
  StreamId stream = 0;
  std::size_t at = 0;
};
// If `a_is_cut`, it is no divergence that a ends and b goes on; `b_is_cut` likewise.
std::optional<Divergence> first_divergence(const StreamRecords& a, const StreamRecords& b,
                                           bool a_is_cut = false, bool b_is_cut = false);

// Compares the collectives of two traces, rank by rank and stream by stream. Returns nothing if they agree,
// else the first divergence in words. It compares `observed` of both, and each `issued` with its own
// `observed`, and ignores times and environments.
std::optional<std::string> first_difference(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b);

}  // namespace cp
