// Target: what a back end can do, as plain data.
//
// Builders take a Target, so that a plan is complete before it meets a device; it is part of the plan's
// digest. Every device can run a plan of every Target whose operations it has (contract 7).
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"

namespace cp {

struct Target {
  std::string name;
  std::set<std::string> collectives;  // operation_name() of the collectives it has
  std::set<std::string> kernels;      // operation_name() of the kernels it has
  std::set<DType> dtypes;
  std::int64_t alignment_bytes = 1;  // of every temporary in the arena; 1: the element's own size

  bool has_collective(std::string_view operation) const {
    return collectives.contains(std::string(operation));
  }
  bool has_kernel(std::string_view operation) const { return kernels.contains(std::string(operation)); }
  bool operator==(const Target&) const = default;
};

// Everything that the host kernels and collectives can do: the fabric's target and Gloo's.
const Target& host_target();

// The same with every kernel that a plan can have, RowKernels too: what is planned, checked and timed, and runs nowhere yet.
const Target& shape_target();

Hasher& hash(Hasher& hasher, const Target& target);

}  // namespace cp
