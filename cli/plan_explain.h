// Why a layout is not the best: what `cpsim plan --explain` prints.
#pragma once

#include <optional>
#include <string>

#include "sim/search/answer.h"

namespace cp::cli {

struct LayoutVerdict {
  enum class Kind { rejected, too_large, slower, equal, best };  // equal: its interval meets the best's
  Kind kind = Kind::rejected;
  ParallelLayout layout;
  std::string reason;                       // rejected: and the nearest layout that works
  Memory memory;                            // unless rejected
  std::optional<sim::Candidate> candidate;  // slower, equal, best
  std::optional<sim::Candidate> best;       // none where the search was not needed, or found nothing
};

// Whether a layout is legal and fits: a verdict where it does not, nothing where only a search can tell.
std::optional<LayoutVerdict> judge_without_search(const sim::PlanQuestion& question,
                                                  const ParallelLayout& layout);
// Of one that does, beside the answer's best.
LayoutVerdict judge(const sim::PlanAnswer& answer, sim::Candidate candidate);

std::string explanation_text(const sim::PlanQuestion& question, const LayoutVerdict& verdict);
std::string explanation_json(const sim::PlanQuestion& question, const LayoutVerdict& verdict);

}  // namespace cp::cli
