#include "cli/cpsim/plan/what_if_run.h"

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "cli/common/printable.h"
#include "cli/cpsim/plan/plan_files.h"
#include "shared/base/error.h"
#include "sim/base/number_text.h"

namespace cp::cli {

WhatIfRun::WhatIfRun(int threads) {
  options_.threads = threads;
  options_.stop = &InterruptScope::flag();
  options_.progress = [this](const sim::SearchProgress& so_far) {
    progress_.show(str(what_, sim::human_count(so_far.layouts), " layouts, ",
                       sim::human_count(so_far.replayed), " replayed",
                       so_far.best_us > 0 ? str(", best so far ", sim::human_us(so_far.best_us)) : ""));
  };
}

sim::InverseOptions WhatIfRun::inverse_options(const std::function<std::string(std::int64_t)>& text) {
  return {options_.threads, options_.stop, [this, text](std::int64_t tried) { begins(text(tried)); }};
}

void WhatIfRun::begins(const std::string& what) { what_ = str(what, ": "), progress_.show(what); }

std::string tokens_text(std::int64_t tokens) { return str(sim::human_count(tokens), " tokens"); }

sim::PlanRow row_of(const sim::PlanQuestion& question, std::optional<sim::Candidate> best, std::string why) {
  sim::PlanRow row;
  row.seq_len = question.workload.seq_len, row.batch = question.workload.global_batch;
  row.nodes = question.cluster.nodes, row.gpus = question.cluster.num_gpus();
  row.cluster = question.cluster.name;
  row.best = std::move(best), row.why = std::move(why);
  return row;
}

sim::PlanRow searched_row(const sim::PlanQuestion& question, const sim::SearchOptions& options) {
  try {
    const sim::PlanAnswer answer = sim::search_layouts(question, options);
    if (answer.best.empty()) return row_of(question, std::nullopt, "interrupted");
    return row_of(question, answer.best.front());
  } catch (const Infeasible& error) {
    return row_of(question, std::nullopt, error.what());
  } catch (const InvalidInput& error) {
    sim::PlanRow row = row_of(question, std::nullopt, error.what());
    row.refused = true;
    return row;
  }
}

void print_rows(const sim::PlanRows& rows, const WhatIfOutput& output) {
  const bool prints_csv = output.csv == "-";
  if (!output.csv.empty() && !prints_csv) write_text_file("--csv", output.csv, sim::rows_csv(rows));
  if (prints_csv) {
    fmt::print("{}", sim::rows_csv(rows));
  } else if (output.json) {
    fmt::print("{}\n", sim::rows_json(rows));
  } else {
    fmt::print("{}", printable(sim::rows_text(rows, output.brief)));
  }
  std::fflush(stdout);
}

}  // namespace cp::cli
