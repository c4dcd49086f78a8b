#include "runtime/this_host.h"

#include <array>
#include <fstream>
#include <unistd.h>

namespace cp::runtime {

std::string host_name() {
  std::array<char, 257> name{};  // POSIX: at most 255 letters
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace cp::runtime
