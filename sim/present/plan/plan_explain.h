// Why a layout is not the best, and what sets two apart: what `cpsim plan --explain` and `--compare` print.
//
// Keys that a layout's text does not give are what the search found for them; the text says so, and what the
// defaults would take.
//
// JSON, --explain: schema "cpsim.plan.explain/1", warnings [text], asked, layout, verdict ("rejected", "too
// large", "slower", "equal", "best"), reason,
//   works (a layout that is legal and fits, or ""), found, as_written {layout, step_us, fits, why} or null,
//   lost [text], and unless rejected: memory_bytes, usable_bytes, left_bytes, fits, step_us, low_us, high_us,
//   in decode ttft_us; best {layout, step_us, low_us, high_us, ttft_us} and parts [{name, us, best_us}] where
//   there is a best one
// JSON, --compare: schema "cpsim.plan.compare/1", warnings, layouts [what --explain has of each, with `fits`
// "no" where it is too large], and
//   where neither is rejected: parts [{name, us of each}], memory [{name, bytes of each}]
#pragma once

#include <array>
#include <optional>
#include <string>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/completion.h"
#include "sim/planner/search/decision.h"

namespace cp::sim {

struct LayoutVerdict {
  // undecided: slower as the rates are believed to be, but not in nine of ten cases; best: nothing is faster,
  // or it ties with what is.
  enum class Kind { rejected, too_large, slower, undecided, best };
  Kind kind = Kind::rejected;
  std::string asked;
  sim::Completion completion;
  std::optional<sim::Candidate> best;     // none where the search found nothing
  std::optional<sim::Comparison> beside;  // slower, undecided: with the best
};

// Of a layout beside the best of a search, where there is one.
LayoutVerdict judge(const sim::PlanQuestion& question, std::string asked, sim::Completion completion,
                    std::optional<sim::Candidate> best);

std::string explanation_text(const sim::PlanQuestion& question, const LayoutVerdict& verdict);
std::string explanation_json(const sim::PlanQuestion& question, const LayoutVerdict& verdict);

// Without the best: two layouts with each other.
std::string comparison_text(const sim::PlanQuestion& question, const std::array<LayoutVerdict, 2>& verdicts);
std::string comparison_json(const sim::PlanQuestion& question, const std::array<LayoutVerdict, 2>& verdicts);

}  // namespace cp::sim
