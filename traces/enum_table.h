// Translates between an enumeration of the project and its protobuf form. One table serves both directions.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include "shared/base/error.h"
#include "traces/field_path.h"

namespace cp {

template <class Enum, class ProtoEnum, std::size_t kSize>
struct EnumTable {
  std::pair<Enum, ProtoEnum> rows[kSize];

  ProtoEnum to_proto(Enum value) const {
    for (const auto& [ours, theirs] : rows) {
      if (ours == value) return theirs;
    }
    CP_INVARIANT(false, descriptor().full_name(), " lacks ", static_cast<int>(value));
  }

  // Throws InvalidInput for 0, which means that the field is not set, and for numbers that only a later
  // version knows.
  Enum from_proto(ProtoEnum value, const FieldPath& path) const {
    for (const auto& [ours, theirs] : rows) {
      if (theirs == value) return ours;
    }
    std::string known;
    for (const auto& [ours, theirs] : rows) {
      const std::string& name = descriptor().FindValueByNumber(theirs)->name();
      known += str(known.empty() ? "" : ", ", name, "=", static_cast<int>(theirs));
    }
    if (static_cast<int>(value) == 0) path.fail("is not set; use one of ", known);
    path.fail("is ", static_cast<int>(value), ", which this version does not know; use one of ", known);
  }

  static const google::protobuf::EnumDescriptor& descriptor() {
    return *google::protobuf::GetEnumDescriptor<ProtoEnum>();
  }
};

}  // namespace cp
