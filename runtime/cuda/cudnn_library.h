// cuDNN's library, loaded when it is first needed: what needs no fused attention runs without it.
#pragma once

#include <optional>
#include <string>

namespace cp::runtime {

// Looks for libcudnn.so.9 where the loader looks (LD_LIBRARY_PATH, the program's run path, the system's
// folders), then where it was when this was built. Throws InvalidInput where it is in none, or older than
// 9.15.1. Calls after the first return at once.
void load_cudnn();

// Of the library that is loaded, "9.19.0"; nothing where there is none that load_cudnn() takes.
std::optional<std::string> cudnn_version();

}  // namespace cp::runtime
