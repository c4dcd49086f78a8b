// What the questions around a plan share: a progress line over several searches, rows, and where they are
// written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/common/interrupt.h"
#include "cli/cpsim/plan/plan_what_if.h"
#include "cli/cpsim/progress_line.h"
#include "sim/base/stop.h"
#include "sim/planner/search/inverse.h"
#include "sim/planner/search/search.h"
#include "sim/present/plan/plan_what_if_screen.h"

namespace cp::cli {

// A search, or several, with one progress line; Ctrl-C ends them.
class WhatIfRun {
 public:
  explicit WhatIfRun(int threads);
  WhatIfRun(const WhatIfRun&) = delete;
  WhatIfRun& operator=(const WhatIfRun&) = delete;

  const sim::SearchOptions& options() const { return options_; }
  sim::InverseOptions inverse_options(const std::function<std::string(std::int64_t)>& text);
  // Of the progress line's beginning.
  void begins(const std::string& what);

 private:
  const InterruptScope interrupts_;
  const sim::StopScope stop_{&InterruptScope::flag()};
  Progress progress_;
  std::string what_;
  sim::SearchOptions options_;
};

// With nothing half done to show.
template <class Answer>
auto what_if_unless_interrupted(int threads, const Answer& answer) {
  auto result = [&] {
    WhatIfRun run(threads);
    return answer(run);
  }();
  if (InterruptScope::interrupted()) end_interrupted();
  return result;
}

std::string tokens_text(std::int64_t tokens);  // "131,072 tokens"

sim::PlanRow row_of(const sim::PlanQuestion& question, std::optional<sim::Candidate> best,
                    std::string why = "");
// The best at a length or on nodes; why nothing is legal or fits otherwise.
sim::PlanRow searched_row(const sim::PlanQuestion& question, const sim::SearchOptions& options);

void print_rows(const sim::PlanRows& rows, const WhatIfOutput& output);

}  // namespace cp::cli
