#include "tests/plan/plan_model.h"

#include <algorithm>

namespace cp::test {

std::set<std::int64_t> elements(const View& view, std::int64_t offset) {
  std::set<std::int64_t> result;
  for (std::int64_t flat = 0; flat < view.numel(); ++flat) {
    std::int64_t at = offset, rest = flat;
    for (std::size_t dim = view.shape.size(); dim-- > 0;) {
      at += rest % view.shape[dim] * view.strides[dim];
      rest /= view.shape[dim];
    }
    result.insert(at);
  }
  return result;
}

std::vector<Instance> instances_of(const Plan& plan) {
  const std::vector<StepRef> steps = steps_of(plan);
  std::vector<Instance> instances;
  for (std::size_t begin = 0, end; begin < steps.size(); begin = end) {
    for (end = begin; end < steps.size() && steps[end].segment == steps[begin].segment;) ++end;
    for (std::int64_t iteration = 0; iteration < steps[begin].count; ++iteration) {
      for (std::size_t i = begin; i < end; ++i) {
        Instance instance{steps[i].id, iteration, steps[i].step->stream, steps[i].segment, {}, {}};
        for (const Access& access : accesses(steps[i].step->work)) {
          for (const std::int64_t element : elements(*access.view, offset_at(*access.view, iteration))) {
            if (access.reads) instance.reads.emplace(access.view->buffer, element);
            if (access.writes) instance.writes.emplace(access.view->buffer, element);
          }
        }
        instances.push_back(std::move(instance));
      }
    }
  }
  return instances;
}

bool conflict(const Instance& a, const Instance& b) {
  const auto meet = [](const auto& x, const auto& y) {
    return std::any_of(x.begin(), x.end(), [&](const auto& element) { return y.contains(element); });
  };
  return meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes);
}

Before happens_before(const Plan& plan, const std::vector<Instance>& instances) {
  const std::vector<StepRef> steps = steps_of(plan);
  Before before(instances.size(), std::vector<bool>(instances.size(), false));
  for (std::size_t b = 0; b < instances.size(); ++b) {
    const Instance& later = instances[b];
    for (std::size_t a = 0; a < b; ++a) {
      const Instance& earlier = instances[a];
      bool direct = earlier.stream == later.stream;
      for (const Edge& edge : steps[static_cast<std::size_t>(later.step)].step->after) {
        if (edge.step != earlier.step) continue;
        const std::int64_t target = earlier.segment == later.segment
                                        ? later.iteration - edge.iterations_back
                                        : steps[static_cast<std::size_t>(edge.step)].count - 1;
        direct = direct || earlier.iteration == target;
      }
      if (!direct) continue;
      before[b][a] = true;
      for (std::size_t c = 0; c < a; ++c) {
        if (before[a][c]) before[b][c] = true;
      }
    }
  }
  return before;
}

}  // namespace cp::test
