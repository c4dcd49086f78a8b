#include "sim/planner/search/inverse.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "sim/cost/cluster/used_part.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/feasible.h"

namespace cp::sim {
namespace {

// The longest length that may be asked for. Chosen: far above what any model has.
constexpr std::int64_t kLongest = std::int64_t{1} << 40;
// Both forms, in numbers that are such.
std::string forms_of(std::string_view what) {
  return what == "length" ? "; use a range that doubles, 32K..1M, or a list, 8K,12K"
                          : "; use a range that doubles, 1..8, or a list, 2,3,4";
}

std::int64_t parse_one(std::string_view text, std::string_view what) {
  std::int64_t number = 0;
  try {
    number = parse_int(text, what);
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(error.what(), forms_of(what)));
  }
  if (number < 1 || number > kLongest)
    throw InvalidInput(str("the ", what, " ", text, " is out of range: 1 to ", kLongest, forms_of(what)));
  return number;
}

bool stopped(const std::atomic<bool>* stop) { return stop != nullptr && stop->load(); }

// No step takes less: all GPUs at their peak. Products in four bits have another one.
double least_us(const PlanQuestion& question) {
  if (question.software.linear_precision == LinearPrecision::nvfp4) return 0;
  return model_flops_utilisation(question, 1);
}

}  // namespace

std::vector<std::int64_t> parse_numbers(std::string_view text, std::string_view what) {
  std::vector<std::int64_t> numbers;
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) {
    for (const std::string_view part : split(text, ',')) {
      const std::int64_t number = parse_one(part, what);
      if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
    }
    if (numbers.empty()) throw InvalidInput(str("no ", what, " in '", text, "'", forms_of(what)));
    return numbers;
  }
  const std::int64_t first = parse_one(text.substr(0, dots), what),
                     last = parse_one(text.substr(dots + 2), what);
  if (first > last) throw InvalidInput(str("the range ", text, " ends before it begins", forms_of(what)));
  for (std::int64_t number = first; number <= last; number *= 2) numbers.push_back(number);
  if (numbers.back() != last) numbers.push_back(last);
  return numbers;
}

std::vector<std::int64_t> parse_lengths(std::string_view text) { return parse_numbers(text, "length"); }

std::vector<SweepPoint> sweep(const std::vector<PlanQuestion>& questions, const SearchOptions& options,
                              const std::function<void(const PlanQuestion&)>& next) {
  std::vector<SweepPoint> points;
  std::string first_refusal;
  std::size_t refused = 0;
  for (const PlanQuestion& question : questions) {
    if (next) next(question);
    SweepPoint point;
    try {
      const PlanAnswer answer = search_layouts(question, options);
      if (!answer.best.empty()) point.best = answer.best.front();
    } catch (const Infeasible& error) {
      point.why = error.what();
    } catch (const InvalidInput& error) {
      if (refused++ == 0) first_refusal = error.what();
      point.why = error.what(), point.refused = true;
    }
    if (stopped(options.stop)) return points;
    points.push_back(std::move(point));
  }
  if (refused > 0 && refused == questions.size()) throw InvalidInput(first_refusal);
  return points;
}

PlanQuestion at_seq_len(PlanQuestion question, std::int64_t seq_len) {
  Workload& workload = question.workload;
  workload.seq_len = seq_len;
  if (!workload.cu_seqlens.empty()) {  // those that begin before the new end; the last one ends there
    std::erase_if(workload.cu_seqlens, [&](std::int64_t end) { return end >= seq_len; });
    workload.cu_seqlens.push_back(seq_len);
  }
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
    return feasible(at_seq_len(question, grains * grain), {options.threads}).has_value();
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

double most_us_of(const PlanQuestion& question, double tokens_per_s) {
  return 1e6 * static_cast<double>(tokens_of_step(question.workload)) / tokens_per_s;
}

FewestGpus fewest_gpus(const PlanQuestion& question, const SearchOptions& search,
                       const InverseOptions& options) {
  FewestGpus found;
  const bool in_time = search.most_us < kNever;
  const bool limited = in_time || (question.workload.phase == Phase::decode && question.max_ttft_ms);
  for (const int gpus : gpu_counts(question)) {
    if (stopped(options.stop)) break;
    if (options.trying) options.trying(gpus);
    const PlanQuestion on = at_gpus(question, gpus);
    if (in_time && search.most_us < least_us(on)) continue;
    try {
      if (!feasible(on, {options.threads})) continue;
      if (limited && search_layouts(on, search).best.empty()) {
        found.too_slow.push_back(gpus);
        continue;
      }
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
