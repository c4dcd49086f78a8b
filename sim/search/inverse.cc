#include "sim/search/inverse.h"

#include <algorithm>

#include "shared/base/error.h"
#include "sim/search/layout_space.h"

namespace cp::sim {
namespace {

std::int64_t parse_length(std::string_view text) {
  const std::string what = "a length";
  std::int64_t unit = 1;
  std::string_view digits = trim(text);
  if (!digits.empty() && (digits.back() == 'K' || digits.back() == 'k')) unit = 1024;
  if (!digits.empty() && (digits.back() == 'M' || digits.back() == 'm')) unit = 1024 * 1024;
  if (unit > 1) digits.remove_suffix(1);
  const std::int64_t length = parse_int(digits, what) * unit;
  if (length < 1) throw InvalidInput(str("length ", text, "; use 1 or more, as in 32K..1M or 8K,12K"));
  return length;
}

}  // namespace

std::vector<std::int64_t> parse_lengths(std::string_view text) {
  std::vector<std::int64_t> lengths;
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) {
    for (const std::string_view part : split(text, ',')) lengths.push_back(parse_length(part));
  } else {
    const std::int64_t first = parse_length(text.substr(0, dots)), last = parse_length(text.substr(dots + 2));
    for (std::int64_t length = first; length <= last; length *= 2) lengths.push_back(length);
  }
  if (lengths.empty()) {
    throw InvalidInput(
        str("no length in '", text, "'; use a range that doubles, 32K..1M, or a list, 8K,12K"));
  }
  return lengths;
}

std::vector<SweepPoint> sweep_seq_len(const PlanQuestion& question, const std::vector<std::int64_t>& lengths,
                                      const SearchOptions& options) {
  std::vector<SweepPoint> points;
  for (const std::int64_t length : lengths) {
    if (options.stop != nullptr && options.stop->load()) break;
    PlanQuestion at = question;
    at.workload.seq_len = length;
    SweepPoint point{length, std::nullopt, ""};
    try {
      const PlanAnswer answer = search_layouts(at, options);
      if (!answer.best.empty()) point.best = answer.best.front();
    } catch (const Infeasible& error) {
      point.why = error.what();
    }
    points.push_back(std::move(point));
  }
  return points;
}

std::optional<ParallelLayout> feasible(const PlanQuestion& question) {
  const LayoutSpace space(question);
  const MemoryRules rules = memory_rules(question);
  const std::int64_t usable = usable_bytes(question);
  const auto fits = [&](const ParallelLayout& layout) {
    if (refuse(question.model, question.workload, layout)) return false;
    const Memory memory = memory_of(question.model, question.workload, layout, rules);
    return memory.used() - memory.context <= usable;
  };
  const std::vector<ParallelLayout> families = space.families();
  for (const ParallelLayout& family : families) {
    const ParallelLayout leanest = space.leanest_member(family);
    if (fits(leanest)) return leanest;
  }
  for (const ParallelLayout& family : families) {
    for (const ParallelLayout& layout : space.members(family)) {
      if (fits(layout)) return layout;
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> longest_seq_len(PlanQuestion question, std::int64_t grain, std::int64_t limit) {
  const auto fits = [&](std::int64_t grains) {
    question.workload.seq_len = grains * grain;
    return feasible(question).has_value();
  };
  std::int64_t low = std::max<std::int64_t>(1, question.workload.seq_len / grain);
  if (!fits(low)) return std::nullopt;
  std::int64_t high = low;
  while (high * grain < limit && fits(std::min(2 * high, limit / grain))) {
    low = high = std::min(2 * high, limit / grain);
    if (high * grain >= limit) return high * grain;
  }
  high = std::min(2 * low, limit / grain);
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low * grain;
}

std::optional<int> fewest_nodes(PlanQuestion question) {
  const int most = question.cluster.nodes;
  for (int nodes = 1; nodes <= most; ++nodes) {
    question.cluster.nodes = nodes;
    if (feasible(question)) return nodes;
  }
  return std::nullopt;
}

}  // namespace cp::sim
