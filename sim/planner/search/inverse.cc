#include "sim/planner/search/inverse.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "sim/base/stop.h"
#include "sim/cost/cluster/used_part.h"
#include "sim/planner/search/layout_space.h"

namespace cp::sim {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 40;
constexpr const char* kForms = "; use a range that doubles, 32K..1M, or a list, 8K,12K";

std::int64_t parse_length(std::string_view text) {
  std::int64_t length = 0;
  try {
    length = parse_int(text, "length");
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(error.what(), kForms));
  }
  if (length < 1 || length > kLongest)
    throw InvalidInput(str("the length ", text, " is out of range: 1 to ", kLongest, kForms));
  return length;
}

bool stopped(const std::atomic<bool>* stop) { return stop != nullptr && stop->load(); }

}  // namespace

std::vector<std::int64_t> parse_lengths(std::string_view text) {
  std::vector<std::int64_t> lengths;
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) {
    for (const std::string_view part : split(text, ',')) lengths.push_back(parse_length(part));
    if (lengths.empty()) throw InvalidInput(str("no length in '", text, "'", kForms));
    return lengths;
  }
  const std::int64_t first = parse_length(text.substr(0, dots)), last = parse_length(text.substr(dots + 2));
  if (first > last) throw InvalidInput(str("the range ", text, " ends before it begins", kForms));
  for (std::int64_t length = first; length <= last; length *= 2) lengths.push_back(length);
  if (lengths.back() != last) lengths.push_back(last);
  return lengths;
}

std::vector<SweepPoint> sweep_seq_len(const std::vector<PlanQuestion>& questions,
                                      const SearchOptions& options,
                                      const std::function<void(const PlanQuestion&)>& next) {
  std::vector<SweepPoint> points;
  std::string first_refusal;
  std::size_t refused = 0;
  for (const PlanQuestion& question : questions) {
    if (next) next(question);
    SweepPoint point{question.workload.seq_len, std::nullopt, ""};
    try {
      const PlanAnswer answer = search_layouts(question, options);
      if (!answer.best.empty()) point.best = answer.best.front();
    } catch (const Infeasible& error) {
      point.why = error.what();
    } catch (const InvalidInput& error) {
      if (refused++ == 0) first_refusal = error.what();
      point.why = error.what();
    }
    if (stopped(options.stop)) return points;
    points.push_back(std::move(point));
  }
  if (refused > 0 && refused == questions.size()) throw InvalidInput(first_refusal);
  return points;
}

std::optional<ParallelLayout> feasible(const PlanQuestion& question) {
  const LayoutSpace space(question);
  const MemoryRules rules = memory_rules(question);
  const std::int64_t usable = usable_bytes(question);
  const auto memory = [&](const ParallelLayout& layout) {
    return memory_of(question.model, question.workload, layout, rules);
  };
  const auto fits = [&](const Memory& of) { return of.used() - of.context <= usable; };
  std::vector<ParallelLayout> by_strategy;  // families of which only another strategy may fit
  for (const ParallelLayout& family : space.families()) {
    look_at_stop();
    const ParallelLayout leanest = space.leanest_member(family);
    if (refuse(question.model, question.workload, leanest)) continue;
    Memory of = memory(leanest);
    if (fits(of)) return leanest;
    of.attention = of.communicators = of.slack = 0;
    if (fits(of)) by_strategy.push_back(family);
  }
  for (const ParallelLayout& family : by_strategy) {
    for (const ParallelLayout& layout : space.members(family)) {
      look_at_stop();
      if (!refuse(question.model, question.workload, layout) && fits(memory(layout))) return layout;
    }
  }
  return std::nullopt;
}

PlanQuestion at_seq_len(PlanQuestion question, std::int64_t seq_len) {
  Workload& workload = question.workload;
  workload.seq_len = seq_len;
  if (workload.phase == Phase::decode) workload.cached = seq_len - workload.new_tokens;
  return question;
}

std::int64_t seq_len_grain(const PlanQuestion& question) {
  return std::lcm<std::int64_t>(1024, 2 * std::int64_t{question.cluster.num_gpus()});
}

std::optional<std::int64_t> longest_seq_len(const PlanQuestion& question, std::int64_t grain,
                                            std::int64_t limit, const InverseOptions& options) {
  const auto fits = [&](std::int64_t grains) {
    if (stopped(options.stop)) return false;
    if (options.trying) options.trying(grains * grain);
    return feasible(at_seq_len(question, grains * grain)).has_value();
  };
  const std::int64_t most = limit / grain;
  std::int64_t low = std::max<std::int64_t>(1, question.workload.seq_len / grain);
  if (low > most || !fits(low)) return std::nullopt;
  std::int64_t too_many = most + 1;
  while (low < most) {  // doubles until something does not fit
    const std::int64_t next = std::min(2 * low, most);
    if (!fits(next)) {
      too_many = next;
      break;
    }
    low = next;
  }
  while (too_many - low > 1) {
    const std::int64_t middle = low + (too_many - low) / 2;
    (fits(middle) ? low : too_many) = middle;
  }
  if (stopped(options.stop)) return std::nullopt;
  return low * grain;
}

std::vector<int> gpu_counts(const PlanQuestion& question) {
  const Cluster& cluster = question.cluster;
  std::vector<int> counts;
  for (int gpus = 1; gpus < cluster.node.gpus; ++gpus) {
    if (cluster.node.gpus % gpus == 0) counts.push_back(gpus);
  }
  for (int nodes = 1; nodes <= cluster.nodes; ++nodes) counts.push_back(nodes * cluster.node.gpus);
  return counts;
}

PlanQuestion at_gpus(PlanQuestion question, int gpus) {
  Cluster& cluster = question.cluster;
  if (gpus >= cluster.node.gpus) {
    CP_INVARIANT(gpus % cluster.node.gpus == 0, gpus, " GPUs of nodes of ", cluster.node.gpus);
    cluster.nodes = gpus / cluster.node.gpus;
  } else {
    cluster = part_of_node(std::move(cluster), gpus);
    question.part_of_a_node = true;
  }
  return question;
}

FewestGpus fewest_gpus(const PlanQuestion& question, const SearchOptions& search,
                       const InverseOptions& options) {
  FewestGpus found;
  const bool limited = question.workload.phase == Phase::decode && question.max_ttft_ms;
  for (const int gpus : gpu_counts(question)) {
    if (stopped(options.stop)) break;
    if (options.trying) options.trying(gpus);
    const PlanQuestion on = at_gpus(question, gpus);
    try {
      if (!feasible(on)) continue;
      if (limited) search_layouts(on, search);
      found.gpus = gpus;
      return found;
    } catch (const Infeasible&) {
      found.too_slow.push_back(gpus);
    } catch (const InvalidInput&) {  // what is fixed does not fit so many GPUs
    }
  }
  return found;
}

}  // namespace cp::sim
