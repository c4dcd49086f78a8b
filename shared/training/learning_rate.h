// The learning rate of each step: it rises in a straight line over the warm-up, and falls along a cosine to a
// share of its peak at the last step, as GPT-3 was trained (Brown et al. 2020, appendix B).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace cp {

struct LearningRate {
  double peak = 3e-4;
  std::int64_t warmup = 0, steps = 1;  // the warm-up is part of the steps
  double least = 0.1;                  // at the last step, as a share of the peak

  // Of a step, counted from 1.
  double at(std::int64_t step) const {
    if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
    const double way =
        static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(1, steps - warmup));
    const double fallen = 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, way)));
    return peak * (least + (1 - least) * fallen);
  }
};

}  // namespace cp
