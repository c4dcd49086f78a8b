// Converts what plans and traces share to and from its protobuf form: dtypes, reductions, digests and groups.
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
// Ranks must not be negative. Whether they repeat is for the checker to say.
Group from_proto(const proto::Group& group, const FieldPath& path);

// Returns the text if it is UTF-8, as texts in messages must be: others could be written, but not be read
// again. Throws InvalidInput that quotes the bytes.
const std::string& require_utf8(const std::string& text, const FieldPath& path);

}  // namespace cp
