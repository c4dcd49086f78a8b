// Converts plans to and from their protobuf form (plan.proto) and its bytes.
#pragma once

#include <string>
#include <string_view>

#include "shared/plan/plan.h"
#include "traces/plan.pb.h"

namespace cp {

// Writes every field. Throws InvalidInput if a name or label is not UTF-8: nothing else of a plan is
// impossible to write.
proto::Plan to_proto(const Plan& plan);

// The inverse. The message may come from anywhere, so everything that would be unsafe to touch is refused:
// throws InvalidInput, with the path of the field and its value, if
//   - an enumerator or operation is unknown, or something is missing;
//   - an id (buffer, group, stream, step, root, peer) names nothing;
//   - a size or count is negative, or so large that arithmetic on it would overflow 64 bits;
//   - a view's shape and strides differ in length, or a temporary reaches out of the arena;
//   - the message holds a digest, and the plan has another one.
// A plan that comes back can be looked at, printed and checked. Whether it makes sense is for check() to say.
Plan from_proto(const proto::Plan& message);

// Equal plans give equal bytes in every process. parse_plan_bytes() throws InvalidInput as from_proto() does,
// and also if the bytes are no plan, are cut off or changed (the digest covers everything but names and
// labels), or are more than kMaxPlanBytes.
//
// kMaxPlanBytes is chosen, equal to kMaxRecordBytes (record_file.h): a step takes about a hundred bytes
// (estimated), so it leaves room for millions of steps, and a forged length cannot exhaust the memory.
constexpr std::size_t kMaxPlanBytes = std::size_t{256} << 20;
std::string serialize_plan(const Plan& plan);
Plan parse_plan_bytes(std::string_view bytes);

}  // namespace cp
