// Loads cuDNN when it is first needed, so that programs without fused attention run without it.
#pragma once

#include <optional>
#include <string>

#include "shared/plan/cudnn_abilities.h"

namespace cp::runtime {

// Looks for libcudnn.so.9 where the loader looks (LD_LIBRARY_PATH, the program's run path, the system's
// folders), and then where it was when this was built. Throws InvalidInput if it is in none of these places,
// or cannot do CudnnAbility::attention. Calls after the first return at once.
void load_cudnn();

// The version of the loaded library. Throws what load_cudnn() throws.
CudnnVersion loaded_cudnn_version();

// The version of the loaded library, such as "9.19.0"; nothing if there is none that load_cudnn() takes.
std::optional<std::string> cudnn_version();

}  // namespace cp::runtime
