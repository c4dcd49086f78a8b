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
  bool operator==(const OpRecord&) const = default;
};

// "all_gather #3 on cp[0,1,2,3] f32 ..."
std::string to_string(const OpRecord& record);

struct RankTrace {
  Rank rank = 0;
  std::vector<OpRecord> issued;           // in issue order
  std::vector<OpRecord> observed;         // collectives only; in order of completion per stream
  std::map<std::string, Digest> digests;  // of outputs that are exact in every world, by buffer name
  bool operator==(const RankTrace&) const = default;
};

// The record that the executor writes for a step. `sequence` counts per group.
OpRecord issued_record(const Plan& plan, const Step& step, std::int64_t sequence);

// Where two traces of one run differ in the collectives, per rank and stream: nothing when they agree, else
// the first divergence in words. `observed` of both are compared, and each `issued` with its own `observed`.
std::optional<std::string> first_difference(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b);

}  // namespace cp
