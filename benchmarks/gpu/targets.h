// The targets of gpu_benchmark, and whether what was measured meets them. It needs no GPU.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace cp::benchmarks {

// Of one benchmark that has run.
struct Measured {
  std::string name;                        // "Ring/forward/head_tail"
  std::map<std::string, double> counters;  // "share", "us/step", ...
};

// What a counter has to be in all benchmarks whose names begin and end so. Of several targets that fit a
// benchmark the first one counts.
struct Target {
  enum class Kind : char { at_least, at_most };
  std::string prefix, suffix, counter;
  Kind kind = Kind::at_least;
  double limit = 0;
};
const std::vector<Target>& targets();

// Returns a line for each target that was missed, with the value, and one if nothing that has a target was
// measured at all. A counter that is absent or not a number misses its target.
std::vector<std::string> missed_targets(const std::vector<Measured>& all,
                                        const std::vector<Target>& targets = benchmarks::targets());

}  // namespace cp::benchmarks
