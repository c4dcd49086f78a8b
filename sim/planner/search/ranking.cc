#include "sim/planner/search/ranking.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "shared/base/text.h"
#include "sim/base/number_text.h"

namespace cp::sim {
namespace {

constexpr std::size_t kPartsShown = 4;
constexpr double kSmallestShown = 0.001;  // of the step

// Texts, which take longer to write than all else here, only where nothing else tells two layouts apart.
bool faster(const Candidate& a, const Candidate& b) {
  const std::pair of_a(a.step_us, a.memory.used()), of_b(b.step_us, b.memory.used());
  return of_a != of_b ? of_a < of_b : to_string(a.layout) < to_string(b.layout);
}

// Steps of a tie's width from the fastest on: what a candidate ties with does not depend on which others were
// replayed.
std::int64_t tie_of(const Candidate& candidate, double least_us) {
  return static_cast<std::int64_t>(std::log(candidate.step_us / least_us) / std::log1p(kTie));
}

// "+12.1 ms exposed cp".
std::string signed_part(TimePart part, double us) {
  return str(us > 0 ? "+" : "-", human_us(std::abs(us)), " ", name(part));
}

}  // namespace

LayoutKind kind_of(const ParallelLayout& layout) {
  const Strategy none, &strategy = layout.cp > 1 ? layout.strategy : none;
  return {layout.dp_replicate, layout.dp_shard, layout.cp,     layout.tp,
          layout.pp,           layout.ep,       strategy.core, strategy.ulysses_degree};
}

std::string class_of(const ParallelLayout& layout) {
  if (layout.pp > 1) return "with PP";
  if (layout.cp == 1) return "without CP";
  return layout.tp > 1 ? "TP + CP" : "pure CP";
}

std::int64_t memory_step(const Memory& memory, std::int64_t usable_bytes) {
  constexpr std::int64_t kSteps = 20;
  return usable_bytes <= 0 ? 0 : (memory.used() - memory.context) * kSteps / usable_bytes;
}

void rank_candidates(std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), faster);
  if (!candidates.empty() && candidates.front().step_us > 0) {
    const double least_us = candidates.front().step_us;
    std::stable_sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
      return std::pair(tie_of(a, least_us), memory_step(a.memory, a.usable_bytes)) <
             std::pair(tie_of(b, least_us), memory_step(b.memory, b.usable_bytes));
    });
  }
  int place = 0;
  for (Candidate& candidate : candidates) candidate.rank = ++place;
}

std::vector<Candidate> best_of_kinds(const std::vector<Candidate>& ranked, std::size_t most) {
  std::vector<Candidate> best;
  std::set<LayoutKind> shown;
  for (const Candidate& candidate : ranked) {
    if (best.size() == most) break;
    if (shown.insert(kind_of(candidate.layout)).second) best.push_back(candidate);
  }
  return best;
}

std::vector<ClassBest> best_of_classes(const std::vector<Candidate>& ranked) {
  std::vector<ClassBest> classes;
  for (const char* name : {"pure CP", "TP + CP", "with PP", "without CP"}) {
    const auto best = std::find_if(ranked.begin(), ranked.end(), [&](const Candidate& candidate) {
      return class_of(candidate.layout) == name;
    });
    if (best == ranked.end()) {
      classes.push_back({name, std::nullopt, "nothing of it is legal and fits"});
    } else {
      classes.push_back({name, *best, difference(*best, ranked.front())});
    }
  }
  return classes;
}

std::string difference(const Candidate& candidate, const Candidate& best) {
  std::map<TimePart, double> parts;
  for (const auto& [part, us] : candidate.parts) parts[part] += us;
  for (const auto& [part, us] : best.parts) parts[part] -= us;
  std::vector<std::pair<TimePart, double>> sorted(parts.begin(), parts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
  std::vector<std::string> words;
  for (const auto& [part, us] : sorted) {
    if (std::abs(us) < kSmallestShown * best.step_us || words.size() == kPartsShown) break;
    words.push_back(signed_part(part, us));
  }
  return join(words, ", ");
}

}  // namespace cp::sim
