#include "cli/plan_explain.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/plan_screen.h"
#include "cli/table.h"
#include "cli/units.h"
#include "shared/base/text.h"
#include "sim/search/search.h"

namespace cp::cli {
namespace {

using Kind = LayoutVerdict::Kind;
using nlohmann::ordered_json;

std::int64_t counted(const Memory& memory) { return memory.used() - memory.context; }

const char* name(Kind kind) {
  switch (kind) {
    case Kind::rejected:
      return "rejected";
    case Kind::too_large:
      return "too large";
    case Kind::slower:
      return "slower";
    case Kind::equal:
      return "equal";
    case Kind::best:
      return "best";
  }
  return "";
}

// The parts of both steps, by name: the largest difference first.
struct PartPair {
  std::string name;
  double us = 0, best_us = 0;
  double difference() const { return us - best_us; }
};
std::vector<PartPair> pairs_of(const sim::Candidate& candidate, const sim::Candidate& best) {
  std::map<std::string, PartPair> by_name;
  for (const sim::TimePart& part : candidate.parts) by_name[part.name].us += part.us;
  for (const sim::TimePart& part : best.parts) by_name[part.name].best_us += part.us;
  std::vector<PartPair> pairs;
  for (auto& [name, pair] : by_name) pairs.push_back({name, pair.us, pair.best_us});
  std::stable_sort(pairs.begin(), pairs.end(), [](const PartPair& a, const PartPair& b) {
    return std::fabs(a.difference()) > std::fabs(b.difference());
  });
  return pairs;
}

std::string signed_time(double us) {
  return us == 0 ? "0" : str(us > 0 ? "+" : "-", human_us(std::fabs(us)));
}

std::string beside_best(const sim::Candidate& candidate, const sim::Candidate& best) {
  Table table({{"part"}, {"this", Align::right}, {"best", Align::right}, {"difference", Align::right}});
  for (const PartPair& pair : pairs_of(candidate, best)) {
    if (std::max(pair.us, pair.best_us) < 0.001 * best.step_us) continue;
    table.add_row({pair.name, human_us(pair.us), human_us(pair.best_us), signed_time(pair.difference())});
  }
  table.add_row({"whole", human_us(candidate.step_us), human_us(best.step_us),
                 signed_time(candidate.step_us - best.step_us)});
  return table.text();
}

std::string memory_text(const sim::PlanQuestion& question, const Memory& memory) {
  return wrapped(fmt::format("memory: {} of {} a GPU; GiB: {}", human_bytes(counted(memory)),
                             human_bytes(sim::usable_bytes(question)), memory_terms(memory)),
                 110, 8) +
         "\n";
}

std::string interval(const sim::Candidate& candidate) {
  return fmt::format("{} ({} to {})", human_us(candidate.step_us), human_us(candidate.low_us),
                     human_us(candidate.high_us));
}

}  // namespace

std::optional<LayoutVerdict> judge_without_search(const sim::PlanQuestion& question,
                                                  const ParallelLayout& layout) {
  LayoutVerdict verdict;
  verdict.layout = layout;
  if (const auto refusal = refuse(question.model, question.workload, layout)) {
    verdict.reason = refusal->reason;
    return verdict;
  }
  verdict.memory = memory_of(question.model, question.workload, layout, sim::memory_rules(question));
  verdict.kind = Kind::too_large;
  if (counted(verdict.memory) > sim::usable_bytes(question)) return verdict;
  return std::nullopt;
}

LayoutVerdict judge(const sim::PlanAnswer& answer, sim::Candidate candidate) {
  LayoutVerdict verdict;
  verdict.layout = candidate.layout;
  verdict.memory = candidate.memory;
  verdict.kind = Kind::best;
  if (!answer.best.empty()) {
    verdict.best = answer.best.front();
    const bool same = to_string(verdict.best->layout) == to_string(candidate.layout);
    if (!same && verdict.best->step_us <= candidate.step_us)
      verdict.kind = candidate.low_us > verdict.best->high_us ? Kind::slower : Kind::equal;
  }
  verdict.candidate = std::move(candidate);
  return verdict;
}

std::string explanation_text(const sim::PlanQuestion& question, const LayoutVerdict& verdict) {
  const std::string layout = to_string(verdict.layout);
  if (verdict.kind == Kind::rejected)
    return wrapped(str(layout, " is rejected: ", verdict.reason), 110, 2) + "\n";
  if (verdict.kind == Kind::too_large) {
    const std::int64_t lacks = counted(verdict.memory) - sim::usable_bytes(question);
    return str(layout, " does not fit: ", human_bytes(lacks), " too much a GPU\n",
               memory_text(question, verdict.memory));
  }
  const sim::Candidate& candidate = *verdict.candidate;
  std::string text = str(layout, ": ", interval(candidate), "\n");
  if (verdict.kind == Kind::best) {
    text += "nothing is faster\n";
    text += wrapped(str("time: ", time_parts(candidate)), 110, 6) + "\n";
  } else {
    const sim::Candidate& best = *verdict.best;
    text += fmt::format("{:.1f} % slower than the best, {}: {}\n",
                        100 * (candidate.step_us / best.step_us - 1), to_string(best.layout), interval(best));
    if (verdict.kind == Kind::equal)
      text += "their intervals meet: what is known of the cluster does not tell them apart\n";
    text += str("\n", beside_best(candidate, best), "\n");
  }
  return text + memory_text(question, verdict.memory);
}

std::string explanation_json(const sim::PlanQuestion& question, const LayoutVerdict& verdict) {
  ordered_json json = {{"schema", "cpsim.plan.explain/1"},
                       {"layout", to_string(verdict.layout)},
                       {"verdict", name(verdict.kind)}};
  if (verdict.kind == Kind::rejected) {
    json["reason"] = verdict.reason;
    return json.dump(2);
  }
  ordered_json memory = ordered_json::object();
  for (const auto& [term, bytes] : terms(verdict.memory)) memory[std::string(term)] = bytes;
  memory["counted"] = counted(verdict.memory);
  json["memory_bytes"] = std::move(memory);
  json["usable_bytes"] = sim::usable_bytes(question);
  if (!verdict.candidate) return json.dump(2);
  const auto timed = [](const sim::Candidate& candidate) {
    return ordered_json{{"layout", to_string(candidate.layout)},
                        {"step_us", candidate.step_us},
                        {"low_us", candidate.low_us},
                        {"high_us", candidate.high_us}};
  };
  json.update(timed(*verdict.candidate));
  if (!verdict.best) return json.dump(2);
  json["best"] = timed(*verdict.best);
  for (const PartPair& pair : pairs_of(*verdict.candidate, *verdict.best))
    json["parts"].push_back({{"name", pair.name}, {"us", pair.us}, {"best_us", pair.best_us}});
  return json.dump(2);
}

}  // namespace cp::cli
