// The protobuf form of a plan (plan.proto), and its bytes.
#pragma once

#include <string>
#include <string_view>

#include "shared/plan/plan.h"
#include "traces/plan.pb.h"

namespace cp {

// Every field. Throws InvalidInput for a name or label that is not UTF-8, the only thing that the form cannot
// hold.
proto::Plan to_proto(const Plan& plan);

// The inverse. The message may come from anywhere: throws InvalidInput, with the path of the field and its
// value, when an enumerator or operation is unknown, something is missing, an id (buffer, group, stream,
// step, root, peer) names nothing, a size or count is negative, a view's shape and strides differ in length,
// a temporary leaves the arena, or sizes are so large that arithmetic on them would overflow 64 bits. Where
// the message holds a digest, the plan must have it. A plan that comes back can be looked at, printed and
// checked; whether it makes sense is for check() to say.
Plan from_proto(const proto::Plan& message);

// Equal plans give equal bytes in every process. parse_plan_bytes() throws InvalidInput as from_proto() does,
// and for bytes that are no plan, are cut off or changed (the digest covers everything but names and labels),
// or exceed kMaxPlanBytes.
constexpr std::size_t kMaxPlanBytes = std::size_t{256} << 20;
std::string serialize_plan(const Plan& plan);
Plan parse_plan_bytes(std::string_view bytes);

}  // namespace cp
