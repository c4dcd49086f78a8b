// What a run leaves behind, as plain data: what was asked, what happened at the library's boundary, and what
// came out.
//
// `observed` is rebuilt by each device from the arguments of the calls it makes (the fabric: from its
// deliveries), never copied from the step. Calls that a back end makes for one step are summed, so that two
// worlds compare equal when they did the same thing by different calls. Order is compared per rank and
// stream; times are never compared for equality.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/plan/plan.h"

namespace cp {

// Checksums of what one rank sent in a collective and of what reached it (shared/base/checksum.h), by peer,
// an entry for each member of the group; 0 where there was no transfer. Several transfers with one peer are
// folded in an order that both ends share.
struct PayloadChecksums {
  std::vector<std::uint64_t> sent, received;
  std::uint64_t result = 0;  // of an all_reduce's output, as its parts were made or came; 0: not digested
  bool operator==(const PayloadChecksums&) const = default;
};

// One operation on one stream of one rank. For kernels only `stream`, `operation` and `sent` = {bytes
// written} are set. The dtype of an Exchange is that of its first send, without sends that of its first
// receive, without either f32.
struct OpRecord {
  StreamId stream = 0;
  std::string operation;
  Group group;
  std::int64_t sequence = -1;  // the how-manieth collective on the group, from 0 where the trace begins
  DType dtype = DType::f32;
  std::optional<ReduceOp> reduction;
  std::int32_t root = -1;                    // index in the group
  std::vector<std::int64_t> sent, received;  // bytes per peer, as Volume counts them
  // Of an observed collective whose payloads were digested (shared/plan/transfer_check.h), else absent.
  std::optional<PayloadChecksums> checksums = {};

  // Without the checksums, which runs may have or not: they are compared between sender and receiver.
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
  std::string operation;                  // the record's
  std::string label;                      // the step's; often empty
  std::int64_t begin_ns = 0, end_ns = 0;  // since the rank's start; 0 <= begin <= end <= kMaxTraceNs
  bool operator==(const TimedOp&) const = default;
};
inline constexpr std::int64_t kMaxTraceNs = 1'000'000'000'000'000'000;  // 31 years; sums of two fit

// Where and with what a rank ran. Plain numbers and texts: who fills them in has the clock and the host.
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
  std::vector<OpRecord> observed;         // collectives only; in order of completion per stream
  std::map<std::string, Digest> digests;  // of outputs that are exact in every world, by buffer name
  // What worlds and runs differ in, and equality therefore leaves out.
  // The i-th time of a stream belongs to the stream's i-th record: of steps as their streams ran them, and of
  // the calls of the library. There may be fewer times than records.
  std::vector<TimedOp> issued_times = {}, observed_times = {};
  // From the run's common start to the rank's start; |offset| <= kMaxTraceNs.
  std::int64_t clock_offset_ns = 0;
  std::optional<Environment> environment = {};

  bool operator==(const RankTrace& other) const {
    return rank == other.rank && issued == other.issued && observed == other.observed &&
           digests == other.digests;
  }
};

// The record that the executor writes for a step. `sequence` counts per group.
OpRecord issued_record(const Plan& plan, const Step& step, std::int64_t sequence);

// The records on each stream, in order.
using StreamRecords = std::map<StreamId, std::vector<const OpRecord*>>;
StreamRecords records_by_stream(const std::vector<OpRecord>& records, bool collectives_only);

// Where the records of two worlds part: the first stream, and the first position on it, at which they differ.
struct Divergence {
  StreamId stream = 0;
  std::size_t at = 0;
};
// With `a_is_cut`, that a ends where b goes on is no divergence; `b_is_cut` likewise.
std::optional<Divergence> first_divergence(const StreamRecords& a, const StreamRecords& b,
                                           bool a_is_cut = false, bool b_is_cut = false);

// Where two traces of one run differ in the collectives, per rank and stream: nothing when they agree, else
// the first divergence in words. `observed` of both are compared, and each `issued` with its own `observed`.
// Times and environments are not looked at.
std::optional<std::string> first_difference(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b);

}  // namespace cp
