// What the questions around a plan share: a progress line over several searches, rows, and where the rows are
// written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/common/interrupt.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/plan/plan_what_if.h"
#include "sim/base/stop.h"
#include "sim/planner/search/inverse.h"
#include "sim/planner/search/search.h"
#include "sim/present/plan/plan_what_if_screen.h"

namespace cp::cli {

// Runs one search or several, with one progress line. Ctrl-C ends them; InterruptScope::interrupted() then
// tells that it did.
class WhatIfRun {
 public:
  explicit WhatIfRun(int threads);
  WhatIfRun(const WhatIfRun&) = delete;
  WhatIfRun& operator=(const WhatIfRun&) = delete;

  // Options with the threads, the progress line and the stop flag. They refer to this object.
  const sim::SearchOptions& options() const { return options_; }
  // The same for an inverse question. text(n) is what the progress line says while n (tokens or GPUs) is
  // tried.
  sim::InverseOptions inverse_options(const std::function<std::string(std::int64_t)>& text);
  // Sets what the progress line begins with.
  void begins(const std::string& what);

 private:
  const InterruptScope interrupts_;
  const sim::StopScope stop_{&InterruptScope::flag()};
  Progress progress_;
  std::string what_;
  sim::SearchOptions options_;
};

// Calls answer(run) and returns its result. Ends the process with exit code 130 if it was interrupted; for
// answers of which nothing can be shown before they are complete.
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

// A row of an answer. `why` says why there is no best layout.
sim::PlanRow row_of(const sim::PlanQuestion& question, std::optional<sim::Candidate> best,
                    std::string why = "");
// Searches, and returns a row with the best layout; or one that says why nothing is legal or fits. Does not
// throw Infeasible or InvalidInput: the row has their texts.
sim::PlanRow searched_row(const sim::PlanQuestion& question, const sim::SearchOptions& options);

// Prints the rows in the form that `output` asks for, and writes them to its CSV file, if it names one.
// Throws InvalidInput if that file cannot be written.
void print_rows(const sim::PlanRows& rows, const WhatIfOutput& output);

}  // namespace cp::cli
