// The protobuf form of what plans and traces share: dtypes, reductions, digests and groups.
//
// from_proto() throws InvalidInput with the path of the field and its value.
#pragma once

#include <string>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"
#include "shared/plan/plan.h"
#include "traces/field_path.h"
#include "traces/types.pb.h"

namespace cp {

proto::DType to_proto(DType dtype);
proto::ReduceOp to_proto(ReduceOp op);
proto::Digest to_proto(const Digest& digest);
proto::Group to_proto(const Group& group);

DType from_proto(proto::DType dtype, const FieldPath& path);
ReduceOp from_proto(proto::ReduceOp op, const FieldPath& path);
Digest from_proto(const proto::Digest& digest);
// Ranks are not negative; whether they repeat is the checker's matter.
Group from_proto(const proto::Group& group, const FieldPath& path);

// The text itself, which goes into a message: those are UTF-8, and what is not could be written but not read
// again. Throws InvalidInput that quotes the bytes.
const std::string& require_utf8(const std::string& text, const FieldPath& path);

}  // namespace cp
