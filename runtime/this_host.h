// The machine that this process runs on.
#pragma once

#include <string>

namespace cp::runtime {

std::string host_name();  // "unknown" where the system does not say

// Changes with each start of the system, and is another on each machine; empty where the kernel says none.
// Machines may have one name ("localhost").
std::string boot_id();

}  // namespace cp::runtime
