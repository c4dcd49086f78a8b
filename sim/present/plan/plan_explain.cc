#include "sim/present/plan/plan_explain.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/planner/search/doubt.h"
#include "sim/planner/search/ranking.h"
#include "sim/present/plan/plan_screen.h"
#include "sim/present/table.h"

namespace cp::sim {
namespace {

using Kind = LayoutVerdict::Kind;
using nlohmann::ordered_json;
using sim::Candidate;

constexpr double kSure = 0.9;  // the chance that one layout takes longer than another; chosen, nine in ten

const char* name(Kind kind) {
  switch (kind) {
    case Kind::rejected:
      return "rejected";
    case Kind::too_large:
      return "too large";
    case Kind::slower:
      return "slower";
    case Kind::undecided:
      return "undecided";
    case Kind::best:
      return "best";
  }
  return "";
}

// The parts of the two steps, that with the largest difference first.
struct PartPair {
  std::string_view name;
  double us = 0, other_us = 0;
  double difference() const { return us - other_us; }
};
std::vector<PartPair> pairs_of(const Candidate& candidate, const Candidate& other) {
  std::map<sim::TimePart, PartPair> by_part;
  for (const auto& [part, us] : candidate.parts) by_part[part].us += us;
  for (const auto& [part, us] : other.parts) by_part[part].other_us += us;
  std::vector<PartPair> pairs;
  for (const auto& [part, pair] : by_part) pairs.push_back({sim::name(part), pair.us, pair.other_us});
  std::stable_sort(pairs.begin(), pairs.end(), [](const PartPair& a, const PartPair& b) {
    return std::fabs(a.difference()) > std::fabs(b.difference());
  });
  return pairs;
}

// Differences below a nanosecond come from sums that were rounded in another order, so they are written as 0.
std::string signed_time(double us) {
  return std::fabs(us) < 1e-3 ? "0" : str(us > 0 ? "+" : "-", human_us(std::fabs(us)));
}

std::string times_beside(const Candidate& candidate, const char* title, const Candidate& other,
                         const char* other_title) {
  Table table({{"part"}, {title, Align::right}, {other_title, Align::right}, {"difference", Align::right}});
  for (const PartPair& pair : pairs_of(candidate, other)) {
    if (std::max(pair.us, pair.other_us) < 0.001 * other.step_us) continue;
    table.add_row(
        {std::string(pair.name), human_us(pair.us), human_us(pair.other_us), signed_time(pair.difference())});
  }
  table.add_row({"whole", human_us(candidate.step_us), human_us(other.step_us),
                 signed_time(candidate.step_us - other.step_us)});
  return table.text();
}

std::string memory_beside(const Candidate& a, const Candidate& b) {
  const auto gib = [](std::int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / kGiB);
  };
  Table table({{"GiB of a GPU"}, {"A", Align::right}, {"B", Align::right}, {"difference", Align::right}});
  const auto add = [&](std::string_view title, std::int64_t of_a, std::int64_t of_b) {
    const double more = static_cast<double>(of_a - of_b) / kGiB;
    table.add_row({std::string(title), gib(of_a), gib(of_b),
                   std::fabs(more) < 0.05 ? "0" : fmt::format("{:+.1f}", more)});
  };
  const auto of_a = terms(a.memory), of_b = terms(b.memory);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    // 64 MiB: less would be printed as 0.0 or 0.1 GiB.
    constexpr std::int64_t kShown = std::int64_t{1} << 26;
    if (of_a[i].first == "context" || std::max(of_a[i].second, of_b[i].second) < kShown) continue;
    add(of_a[i].first, of_a[i].second, of_b[i].second);
  }
  add("at once", sim::counted_bytes(a.memory), sim::counted_bytes(b.memory));
  return table.text();
}

std::string interval(const Candidate& candidate) {
  return fmt::format("{} ({}){}", human_us(candidate.step_us),
                     human_interval(candidate.low_us, candidate.high_us),
                     candidate.ttft_us ? str(", ", human_us(*candidate.ttft_us), " to the first token") : "");
}

// How far two layouts are apart: "3.2 % slower than".
std::string apart(const Candidate& candidate, const Candidate& other) {
  const double more = 100 * (candidate.step_us / other.step_us - 1);
  return fmt::format("{:.1f} % {} than", std::fabs(more), more < 0 ? "faster" : "slower");
}

// Says how sure it is that the first is slower. What one rate does to both layouts counts in neither figure.
std::string sureness(const sim::Comparison& beside, const char* first, const char* second) {
  const std::string sure =
      beside.slower > 0.995 ? "more than 99 %" : fmt::format("{:.0f} %", 100 * beside.slower);
  return fmt::format(
      "it is {} sure that {} is slower: eight times in ten it takes {:.3g} to {:.3g} times as long as {}\n",
      sure, first, beside.low, beside.high, second);
}

// Says what the search chose, and what the defaults would take.
std::string about_keys(const LayoutVerdict& verdict) {
  const sim::Completion& completion = verdict.completion;
  std::string text;
  if (!completion.found.empty())
    text +=
        titled_line("found", str(completion.found, ": the fastest of what ", verdict.asked, " leaves open"));
  if (completion.as_written) {
    const Candidate& written = *completion.as_written;
    text += titled_line(
        "by default", str(to_string(written.layout), ": ", human_us(written.step_us), ", ",
                          apart(written, *completion.candidate), " that",
                          completion.as_written_fails.empty() ? "" : str("; ", completion.as_written_fails)));
  } else if (!completion.as_written_fails.empty() && completion.candidate) {
    text +=
        titled_line("by default", str("the other keys' defaults cannot run: ", completion.as_written_fails));
  }
  for (const std::string& lost : completion.lost) text += titled_line("cannot say", lost);
  return text;
}

std::string memory_text(const sim::PlanQuestion& question, const Candidate& candidate) {
  return titled_line("memory", str(human_bytes(sim::counted_bytes(candidate.memory)), " of ",
                                   human_bytes(candidate.usable_bytes),
                                   " a GPU; GiB: ", memory_terms(candidate.memory))) +
         titled_line("left", memory_left(candidate, question.memory_width));
}

std::string rejected_text(const LayoutVerdict& verdict) {
  const sim::Completion& completion = verdict.completion;
  return wrapped(str(verdict.asked, " is rejected: ", completion.reason,
                     completion.works.empty() ? "" : str("; ", completion.works, " works")),
                 kScreenWidth, 2) +
         "\n";
}

// What stands above a comparison: the layout, its time, and what became of it.
std::string head(const LayoutVerdict& verdict) {
  const sim::Completion& completion = verdict.completion;
  const Candidate& candidate = *completion.candidate;
  std::string text = str(to_string(candidate.layout), ": ", interval(candidate), "\n");
  if (verdict.kind == Kind::too_large) {
    text = str(to_string(candidate.layout), " does not fit: ", human_bytes(-candidate.left_bytes()),
               " too much a GPU, and it would take ", interval(candidate), "\n");
    if (!completion.works.empty()) text += str(completion.works, " fits\n");
  }
  return text + about_keys(verdict);
}

std::string warnings_of(const sim::PlanQuestion& question) {
  std::string text;
  for (const std::string& warning : question.warnings) text += titled_line("warning", warning);
  return text;
}

ordered_json timed(const Candidate& candidate) {
  ordered_json json{{"layout", to_string(candidate.layout)},
                    {"step_us", candidate.step_us},
                    {"low_us", candidate.low_us},
                    {"high_us", candidate.high_us}};
  if (candidate.ttft_us) json["ttft_us"] = *candidate.ttft_us;
  return json;
}

ordered_json json_of(const LayoutVerdict& verdict) {
  const sim::Completion& completion = verdict.completion;
  ordered_json json = {
      {"asked", verdict.asked},
      {"layout", completion.candidate ? to_string(completion.candidate->layout) : verdict.asked},
      {"verdict", name(verdict.kind)},
      {"reason", completion.reason},
      {"works", completion.works},
      {"found", completion.found}};
  ordered_json written;
  if (completion.as_written) {
    written = {{"layout", to_string(completion.as_written->layout)},
               {"step_us", completion.as_written->step_us},
               {"fits", completion.as_written->fits()},
               {"why", completion.as_written_fails}};
  }
  json["as_written"] = std::move(written);
  json["lost"] = completion.lost;
  if (!completion.candidate) return json;
  const Candidate& candidate = *completion.candidate;
  ordered_json memory = ordered_json::object();
  for (const auto& [term, bytes] : terms(candidate.memory)) memory[std::string(term)] = bytes;
  memory["counted"] = sim::counted_bytes(candidate.memory);
  json["memory_bytes"] = std::move(memory);
  json["usable_bytes"] = candidate.usable_bytes;
  json["left_bytes"] = candidate.left_bytes();
  json["fits"] = !candidate.fits() ? "no" : candidate.likely_fits() ? "likely" : "unlikely";
  json.update(timed(candidate));
  return json;
}

}  // namespace

LayoutVerdict judge(const sim::PlanQuestion& question, std::string asked, sim::Completion completion,
                    std::optional<Candidate> best) {
  LayoutVerdict verdict{Kind::rejected, std::move(asked), std::move(completion), std::move(best),
                        std::nullopt};
  if (!verdict.completion.candidate) return verdict;
  verdict.kind = Kind::too_large;
  if (verdict.completion.kind != sim::Completion::Kind::fits) return verdict;
  verdict.kind = Kind::best;
  if (!verdict.best) return verdict;
  const Candidate& candidate = *verdict.completion.candidate;
  const bool same = to_string(verdict.best->layout) == to_string(candidate.layout);
  if (!same && candidate.step_us > verdict.best->step_us * (1 + sim::kTie)) {
    verdict.beside = sim::compare(candidate, *verdict.best, question);
    verdict.kind = verdict.beside->slower >= kSure ? Kind::slower : Kind::undecided;
  }
  return verdict;
}

std::string explanation_text(const sim::PlanQuestion& question, const LayoutVerdict& verdict) {
  std::string text = warnings_of(question);
  if (verdict.kind == Kind::rejected) return text + rejected_text(verdict);
  const Candidate& candidate = *verdict.completion.candidate;
  text += head(verdict);
  const bool same = verdict.best && to_string(verdict.best->layout) == to_string(candidate.layout);
  if (verdict.kind == Kind::best) {
    const bool tie = verdict.best && !same;
    text += tie ? str("as fast as the best, ", to_string(verdict.best->layout), ": ",
                      human_us(verdict.best->step_us), "\n")
                : "nothing is faster\n";
    text += titled_line("time", time_parts(candidate));
  } else if (verdict.best) {
    const Candidate& best = *verdict.best;
    text +=
        fmt::format("{} the best, {}: {}\n", apart(candidate, best), to_string(best.layout), interval(best));
    if (verdict.beside) text += sureness(*verdict.beside, "this", "the best");
    text += str("\n", times_beside(candidate, "this", best, "best"), "\n");
  } else {
    text += titled_line("time", time_parts(candidate));
  }
  return text + memory_text(question, candidate);
}

std::string explanation_json(const sim::PlanQuestion& question, const LayoutVerdict& verdict) {
  ordered_json json = {{"schema", "cpsim.plan.explain/1"}, {"warnings", question.warnings}};
  json.update(json_of(verdict));
  if (!verdict.completion.candidate || !verdict.best) return json.dump(2);
  json["best"] = timed(*verdict.best);
  if (verdict.beside) {
    json["beside_best"] = {{"slower", verdict.beside->slower},
                           {"ratio_low", verdict.beside->low},
                           {"ratio_high", verdict.beside->high}};
  }
  for (const PartPair& pair : pairs_of(*verdict.completion.candidate, *verdict.best))
    json["parts"].push_back({{"name", pair.name}, {"us", pair.us}, {"best_us", pair.other_us}});
  return json.dump(2);
}

std::string comparison_text(const sim::PlanQuestion& question, const std::array<LayoutVerdict, 2>& verdicts) {
  std::string text = warnings_of(question);
  for (std::size_t i = 0; i < 2; ++i) {
    const LayoutVerdict& verdict = verdicts[i];
    text += i == 0 ? "A  " : "B  ";
    if (verdict.kind == Kind::rejected) {
      text += rejected_text(verdict);
    } else {
      text += str(head(verdict),
                  titled_line("left", memory_left(*verdict.completion.candidate, question.memory_width)));
    }
  }
  if (verdicts[0].kind == Kind::rejected || verdicts[1].kind == Kind::rejected) return text;
  const Candidate &a = *verdicts[0].completion.candidate, &b = *verdicts[1].completion.candidate;
  if (to_string(a.layout) == to_string(b.layout)) return text + "A and B are the same layout\n";
  const bool tie = std::fabs(a.step_us / b.step_us - 1) <= sim::kTie;
  text += tie ? "A is as fast as B" : str("A is ", apart(a, b), " B");
  text += "\n";
  if (!tie) {
    const bool a_is_slower = a.step_us > b.step_us;
    text += a_is_slower ? sureness(sim::compare(a, b, question), "A", "B")
                        : sureness(sim::compare(b, a, question), "B", "A");
  }
  text += str("\n", times_beside(a, "A", b, "B"), "\n", memory_beside(a, b));
  return text;
}

std::string comparison_json(const sim::PlanQuestion& question, const std::array<LayoutVerdict, 2>& verdicts) {
  ordered_json json = {{"schema", "cpsim.plan.compare/1"},
                       {"warnings", question.warnings},
                       {"layouts", {json_of(verdicts[0]), json_of(verdicts[1])}}};
  for (ordered_json& layout : json["layouts"]) {
    if (layout["verdict"] == name(Kind::best)) layout["verdict"] = "fits";
  }
  if (verdicts[0].kind == Kind::rejected || verdicts[1].kind == Kind::rejected) return json.dump(2);
  const Candidate &a = *verdicts[0].completion.candidate, &b = *verdicts[1].completion.candidate;
  const sim::Comparison beside = sim::compare(a, b, question);
  json["a_beside_b"] = {{"slower", beside.slower}, {"ratio_low", beside.low}, {"ratio_high", beside.high}};
  for (const PartPair& pair : pairs_of(a, b))
    json["parts"].push_back({{"name", pair.name}, {"us", {pair.us, pair.other_us}}});
  const auto of_a = terms(a.memory), of_b = terms(b.memory);
  for (std::size_t i = 0; i < of_a.size(); ++i)
    json["memory"].push_back({{"name", of_a[i].first}, {"bytes", {of_a[i].second, of_b[i].second}}});
  return json.dump(2);
}

}  // namespace cp::sim
