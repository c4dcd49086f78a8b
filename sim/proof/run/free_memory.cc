#include "sim/proof/run/free_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace cp::sim {
namespace {

// The number after `key` in a file of lines "key number ...".
std::optional<std::int64_t> value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  std::int64_t value = 0;
  while (file >> word) {
    if (word == key && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// The only number in a file; nothing where it says "max".
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Inside of a container its own group is the root of the hierarchy. Cached files do not count: they make way.
std::optional<std::int64_t> free_in_group(const std::string& limit_file, const std::string& usage_file,
                                          const std::string& stat_file, const std::string& cache_key) {
  const std::optional<std::int64_t> limit = number_in(limit_file), usage = number_in(usage_file);
  if (!limit || !usage) return std::nullopt;
  const std::int64_t cached = value_of(stat_file, cache_key).value_or(0);
  return std::max<std::int64_t>(*limit - (*usage - cached), 0);
}

}  // namespace

std::optional<std::int64_t> free_memory_bytes() {
  std::optional<std::int64_t> free = value_of("/proc/meminfo", "MemAvailable:");
  if (free) *free *= 1024;
  const std::string v2 = "/sys/fs/cgroup/", v1 = "/sys/fs/cgroup/memory/";
  for (const std::optional<std::int64_t> group :
       {free_in_group(v2 + "memory.max", v2 + "memory.current", v2 + "memory.stat", "inactive_file"),
        free_in_group(v1 + "memory.limit_in_bytes", v1 + "memory.usage_in_bytes", v1 + "memory.stat",
                      "total_inactive_file")}) {
    if (group) free = std::min(free.value_or(*group), *group);
  }
  return free;
}

}  // namespace cp::sim
