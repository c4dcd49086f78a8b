// The options of NCCL's communicators that a scenario may set.
#pragma once

#include <string>

#include "runtime/nccl/nccl_device.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Where the scenario says nothing of min_ctas and max_ctas, collectives have the max_ctas of `software`: the
// name or path of a software profile, as `cprun profile` writes it. Empty, or a profile without: NCCL's own.
// Throws InvalidInput, with the field's name, if a value is out of range or unknown, if min_ctas is above
// max_ctas, or if an option would have no effect on plans; and what find_software() throws.
runtime::NcclCommOptions nccl_options(const proto::Nccl& nccl, const std::string& software = "");

}  // namespace cp::cli
