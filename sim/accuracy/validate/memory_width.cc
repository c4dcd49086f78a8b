#include "sim/accuracy/validate/memory_width.h"

#include <algorithm>
#include <cstddef>

#include "sim/accuracy/validate/published_steps.h"

namespace cp::sim {

MemoryWidth memory_width_of(std::vector<double> ratios) {
  constexpr double kShare = 0.8;  // of runs to come, that the width is to hold, as widths.h has it for times
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  const std::size_t runs = ratios.size();
  // As many runs left out at each end as leave four fifths of the runs + 1 gaps between.
  const auto out = static_cast<std::size_t>((1 - kShare) / 2 * static_cast<double>(runs + 1) + 1e-9);
  const std::size_t first = out > 0 ? out - 1 : 0;
  return {ratios[first], ratios[runs - 1 - first], static_cast<int>(runs)};
}

const MemoryWidth& measured_memory_width() {
  static const MemoryWidth width = [] {
    std::vector<double> ratios;
    for (const PublishedStep& step : published_steps()) {
      if (step.metric == PublishedStep::Metric::peak_memory_gib)
        ratios.push_back(step.measured / predict(step));
    }
    return memory_width_of(std::move(ratios));
  }();
  return width;
}

}  // namespace cp::sim
