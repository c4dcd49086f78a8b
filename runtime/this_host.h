// The machine that this process runs on.
#pragma once

#include <string>

namespace cp::runtime {

std::string host_name();  // "unknown" if the system does not tell

// An id that differs between machines, and changes each time that the system starts. It tells machines apart
// that have the same name ("localhost"). Empty if the kernel does not tell it.
std::string boot_id();

}  // namespace cp::runtime
