// The curves of a training as a page of its own: one HTML file that loads nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cp::sim {

struct TrainingPoint {
  std::int64_t step = 0;
  double value = 0;
};

struct TrainingCurves {
  std::string title, begun_with;
  std::vector<TrainingPoint> loss, evaluation, gradient_norm, learning_rate, tokens_per_second;
};

std::string training_page(const TrainingCurves& curves);

}  // namespace cp::sim
