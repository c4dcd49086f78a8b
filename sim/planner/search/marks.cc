#include "sim/planner/search/marks.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace cp::sim {

double Marks::limit_ns(const ParallelLayout& layout) const {
  if (!limited_) return kNever;
  const auto of_class = of_class_ns_.find(class_of(layout));
  if (of_class == of_class_ns_.end()) return most_ns_;
  return std::min(most_ns_, std::max(mark_ns_, of_class->second) * (1 + kTie));
}

void Marks::add(const Candidate& candidate) {
  const double ns = candidate.step_us * kNsPerUs;
  double& of_class = of_class_ns_.try_emplace(class_of(candidate.layout), kNever).first->second;
  of_class = std::min(of_class, ns);
  double& of_kind = kinds_.try_emplace(kind_of(candidate.layout), kNever).first->second;
  of_kind = std::min(of_kind, ns);
}

// The mark is the time of the last of the kinds that the answer shows. A layout slower than that cannot be
// among them.
void Marks::move() {
  if (kinds_.size() < wanted_) return;
  std::vector<double> times;
  for (const auto& [kind, ns] : kinds_) times.push_back(ns);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(wanted_ - 1), times.end());
  mark_ns_ = times[wanted_ - 1];
}

double Marks::best_ns() const {
  double best_ns = kNever;
  for (const auto& [name, ns] : of_class_ns_) best_ns = std::min(best_ns, ns);
  return best_ns;
}

}  // namespace cp::sim
