// The options of NCCL's communicators that a scenario may set.
#pragma once

#include "runtime/nccl/nccl_device.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Throws InvalidInput, with the field's name, if a value is out of range or unknown, if min_ctas is above
// max_ctas, or if an option would have no effect on plans.
runtime::NcclCommOptions nccl_options(const proto::Nccl& nccl);

}  // namespace cp::cli
