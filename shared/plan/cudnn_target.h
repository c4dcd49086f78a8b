// The targets of GPUs whose cuDNN is older than plans assume (cudnn_abilities.h). Their attention has no
// windows whose last keys are elsewhere, or no packed calls, where that cuDNN lacks them: builders then write
// other steps instead, and no device has to refuse the plan.
//
// Plans of all ranks must be made for one target. So a job's ranks tell each other their versions, and all of
// them take what every version has.
#pragma once

#include <span>
#include <string_view>

#include "shared/plan/cudnn_abilities.h"
#include "shared/plan/target.h"

namespace cp {

// The target of GPUs of a generation (as gpu_target()) for ranks that have these versions of cuDNN. It is
// gpu_target() itself if no version lacks anything, or none is given. Else its name says so, and
// gpu_target() and target_by_name() take the name: "sm90+cudnn9.9.0". Versions that lack the same have one
// target, which is named after one of them. The target lives for ever. Throws InvalidInput as gpu_target().
const Target& gpu_target(std::string_view gpu, std::span<const CudnnVersion> versions);

// Takes a name apart: "sm90+cudnn9.9.0" is "sm90" and 90900. The version is 0 where the text has none, or
// none that can be read; the text is then returned whole.
struct NamedCudnn {
  std::string_view gpu;
  CudnnVersion version = 0;
};
NamedCudnn split_target_name(std::string_view name);

}  // namespace cp
