#include "tests/plan/plan_model.h"

#include <algorithm>
#include <map>
#include <optional>

#include "shared/base/text.h"

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

namespace {

bool uses(const Instance& instance, BufferId buffer) {
  return std::any_of(instance.reads.begin(), instance.reads.end(),
                     [&](const auto& element) { return element.first == buffer; }) ||
         std::any_of(instance.writes.begin(), instance.writes.end(),
                     [&](const auto& element) { return element.first == buffer; });
}

bool share_bytes(const Buffer& a, const Buffer& b) {
  return a.offset_bytes < b.offset_bytes + b.bytes() && b.offset_bytes < a.offset_bytes + a.bytes();
}

std::string overwritten(const Plan& plan, const std::vector<Instance>& instances) {
  std::set<std::pair<BufferId, std::int64_t>> written;
  std::map<std::int64_t, BufferId> owners;  // by byte of the arena
  const auto first_byte = [&](const std::pair<BufferId, std::int64_t>& element) {
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(element.first)];
    return buffer.offset_bytes + element.second * size_bytes(buffer.dtype);
  };
  const auto in_arena = [&](BufferId buffer) {
    return plan.buffers[static_cast<std::size_t>(buffer)].kind == BufferKind::temporary;
  };
  for (const Instance& instance : instances) {
    for (const auto& element : instance.reads) {
      if (in_arena(element.first) && written.contains(element) &&
          owners.at(first_byte(element)) != element.first)
        return str("step ", instance.step, " in iteration ", instance.iteration, " reads element ",
                   element.second, " of buffer ", element.first, ", where buffer ",
                   owners.at(first_byte(element)), " was written");
    }
    for (const auto& element : instance.writes) {
      if (!in_arena(element.first)) continue;
      written.insert(element);
      const Buffer& buffer = plan.buffers[static_cast<std::size_t>(element.first)];
      for (std::int64_t byte = 0; byte < size_bytes(buffer.dtype); ++byte)
        owners[first_byte(element) + byte] = element.first;
    }
  }
  return {};
}

}  // namespace

std::string trouble_in_arena(const Plan& plan) {
  const std::vector<Instance> instances = instances_of(plan);
  const Before before = happens_before(plan, instances);
  for (std::size_t a = 0; a < plan.buffers.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const Buffer &one = plan.buffers[a], &other = plan.buffers[b];
      if (one.kind != BufferKind::temporary || other.kind != BufferKind::temporary ||
          !share_bytes(one, other))
        continue;
      for (std::size_t i = 0; i < instances.size(); ++i) {
        if (!uses(instances[i], static_cast<BufferId>(a))) continue;
        for (std::size_t j = 0; j < instances.size(); ++j) {
          if (!uses(instances[j], static_cast<BufferId>(b))) continue;
          if (i == j || !before[std::max(i, j)][std::min(i, j)])
            return str("nothing orders step ", instances[i].step, " in iteration ", instances[i].iteration,
                       ", which uses ", one.name, ", and step ", instances[j].step, " in iteration ",
                       instances[j].iteration, ", which uses ", other.name, " in the same bytes");
        }
      }
    }
  }
  return overwritten(plan, instances);
}

bool carried(const std::vector<Instance>& instances, BufferId buffer) {
  std::optional<std::int32_t> segment;
  std::int64_t iteration = -1;
  std::set<std::int64_t> written;  // in this iteration
  for (const Instance& instance : instances) {
    if (!uses(instance, buffer)) continue;
    if (segment && *segment != instance.segment) return true;
    segment = instance.segment;
    if (instance.iteration != iteration) written.clear();
    iteration = instance.iteration;
    for (const auto& [of, element] : instance.reads)
      if (of == buffer && !written.contains(element)) return true;
    for (const auto& [of, element] : instance.writes)
      if (of == buffer) written.insert(element);
  }
  return false;
}

}  // namespace cp::test
