#include "benchmarks/gpu/targets.h"

#include <algorithm>

#include "shared/base/text.h"

namespace cp::benchmarks {

// Chosen, as what the project promises; docs/measurements has what was measured.
//   Attention  A plan adds two events and a wait on the host to cuDNN's call, whose 4,096 tokens last 0.1 ms.
//   Ring       What moves beside attention takes 2 and 4 % of the time forward, and 4 and 7 % backward
//              (docs/measurements), and steps have gaps of some microseconds.
//   Moves      At 64 MiB a launch is less than 10 % of the time, as it is not below.
//   Rows       The same, where a kernel reads once what the cost model counts. Not yet measured on a GPU.
//              Gradients of the convolution take some 90 instructions for each element, by a count of the
//              kernel's operations, a quarter of them for silu; an H100 issues 51 while its memory moves the
//              element's six bytes (runtime/cuda/row_access.h).
//   HostCost   The launch of a kernel is 2 to 2.5 us of it on a fast processor (bare_us says what it is here);
//              traces add a query and an event to a step.
//   RunStart   A run of 8 steps makes fewer than 15 calls before its first attention.
// The counters limit_us of the suites say the same.
const std::vector<Target>& targets() {
  using Kind = Target::Kind;
  static const std::vector<Target> kAll = {
      {"Attention/", "", "share", Kind::at_least, 0.98},
      {"Ring/forward/", "", "share", Kind::at_least, 0.92},
      {"Ring/backward/", "", "share", Kind::at_least, 0.90},
      {"Moves/", "/64MiB", "share", Kind::at_least, 0.85},
      {"Rows/short_convolution_backward", "/64MiB", "share", Kind::at_least, 0.5},
      {"Rows/", "/64MiB", "share", Kind::at_least, 0.85},
      {"HostCost/traced/", "", "us/step", Kind::at_most, 5},
      {"HostCost/", "", "us/step", Kind::at_most, 4},
      {"RunStart/", "", "us/run", Kind::at_most, 60},
  };
  return kAll;
}

std::vector<std::string> missed_targets(const std::vector<Measured>& all,
                                        const std::vector<Target>& targets) {
  std::vector<std::string> missed;
  bool any = false;
  for (const Measured& measured : all) {
    const auto target = std::ranges::find_if(targets, [&](const Target& one) {
      return measured.name.starts_with(one.prefix) && measured.name.ends_with(one.suffix);
    });
    if (target == targets.end()) continue;
    any = true;
    const bool at_least = target->kind == Target::Kind::at_least;
    const std::string wanted =
        str(target->counter, " is to be ", at_least ? "at least " : "at most ", target->limit);
    const auto counter = measured.counters.find(target->counter);
    if (counter == measured.counters.end()) {
      missed.push_back(str(measured.name, ": ", wanted, ", and was not measured"));
      continue;
    }
    const double value = counter->second;
    const bool meets = at_least ? value >= target->limit : value <= target->limit;  // false for a NaN
    if (!meets) missed.push_back(str(measured.name, ": ", wanted, ", and is ", value));
  }
  if (!any) missed.emplace_back("no benchmark that has a target has run");
  return missed;
}

}  // namespace cp::benchmarks
