// Options of NCCL's communicators that a scenario has.
#pragma once

#include "runtime/nccl/nccl_device.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Throws InvalidInput, with the field, for what makes no sense.
runtime::NcclCommOptions nccl_options(const proto::Nccl& nccl);

}  // namespace cp::cli
