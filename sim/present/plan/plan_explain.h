// Says why a layout is not the best, and what sets two layouts apart: what `cpsim plan --explain` and
// `--compare` print.
//
// If a layout's text leaves keys open, the search chooses their values. The answer says so, and what the
// defaults would take.
//
// JSON of --explain: schema "cpsim.plan.explain/1", warnings [text], asked, layout, verdict ("rejected", "too
//   large", "slower", "undecided", "best"), reason, works (a layout that is legal and fits, or ""), found,
//   as_written {layout, step_us, fits, why} or null, lost [text];
//   unless rejected: memory_bytes, usable_bytes, left_bytes, fits, step_us, low_us, high_us, and in decode
//   ttft_us;
//   if there is a best one: best {layout, step_us, low_us, high_us, ttft_us} and parts [{name, us, best_us}];
//   if slower or undecided, beside_best {slower (the chance of it), ratio_low, ratio_high}
// JSON of --compare: schema "cpsim.plan.compare/1", warnings, layouts [what --explain has of each, with
//   `fits` "no" if it is too large, and the verdict "fits" for "best"];
//   if neither is rejected: a_beside_b {slower, ratio_low, ratio_high}, parts [{name, us of each}], memory
//   [{name, bytes of each}]
#pragma once

#include <array>
#include <optional>
#include <string>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/completion.h"
#include "sim/planner/search/decision.h"

namespace cp::sim {

struct LayoutVerdict {
  // undecided: it is slower with the rates as they are believed to be, but in fewer than nine of ten cases.
  // best: nothing is faster, or it ties with what is.
  enum class Kind { rejected, too_large, slower, undecided, best };
  Kind kind = Kind::rejected;
  std::string asked;
  sim::Completion completion;
  std::optional<sim::Candidate> best;     // absent if the search found nothing
  std::optional<sim::Comparison> beside;  // only if slower or undecided: the comparison with the best
};

// Judges a layout beside the best one of a search, if there is one.
LayoutVerdict judge(const sim::PlanQuestion& question, std::string asked, sim::Completion completion,
                    std::optional<sim::Candidate> best);

std::string explanation_text(const sim::PlanQuestion& question, const LayoutVerdict& verdict);
std::string explanation_json(const sim::PlanQuestion& question, const LayoutVerdict& verdict);

// Compares two layouts with each other, without the best.
std::string comparison_text(const sim::PlanQuestion& question, const std::array<LayoutVerdict, 2>& verdicts);
std::string comparison_json(const sim::PlanQuestion& question, const std::array<LayoutVerdict, 2>& verdicts);

}  // namespace cp::sim
