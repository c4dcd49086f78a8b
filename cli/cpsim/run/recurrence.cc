#include "cli/cpsim/run/recurrence.h"

#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/run/outcome_error.h"
#include "cli/cpsim/scenario_flags.h"
#include "shared/base/error.h"
#include "sim/present/runs/recurrence_report.h"
#include "sim/proof/run/free_memory.h"
#include "sim/proof/run/recurrence_run_memory.h"
#include "traces/trace_proto.h"

namespace cp::cli {
namespace {

// Runs the strategy, or its nearest legal alternative.
sim::RecurrenceOutcome run_one(const sim::RecurrenceJob& job, const RecurrenceStrategy& asked,
                               const sim::RecurrenceTestData& data, const std::string& prefix,
                               Progress& progress) {
  sim::RecurrenceOutcome outcome;
  outcome.asked = asked;
  outcome.refusal = refuse(job.problem, static_cast<int>(job.ranks.size()), asked, job.target);
  sim::RecurrenceRunOptions options;
  options.backward = job.backward;
  options.schedule = job.schedule;
  options.seed = job.seed;
  options.target = job.target;
  options.memory_limit_bytes = sim::free_memory_bytes();
  options.on_phase = [&](std::string_view phase) { progress.show(str(prefix, phase)); };
  try {
    const RecurrenceStrategy& strategy = outcome.refusal ? outcome.refusal->strategy : asked;
    outcome.run = sim::run_recurrence(data, {job.problem, job.ranks, strategy, job.backward}, options);
  } catch (const Error& error) {
    // What cannot run is bad input, unless there are others beside it.
    if (error.kind() == ErrorKind::invalid_input && job.strategies.size() == 1) throw;
    outcome.error = error.what();
  }
  return outcome;
}

}  // namespace

int run_recurrence(const proto::Recurrence& scenario, const RecurrenceOutput& output) {
  const sim::RecurrenceJob job = sim::make_recurrence_job(scenario);
  if (!output.trace.empty() && job.strategies.size() != 1) {
    throw InvalidInput(str("--trace ", output.trace, " holds one run, but ", job.strategies.size(),
                           " strategies were asked for; use --strategy with one of them"));
  }
  if (job.strategies.size() == 1) {
    const auto refusal =
        refuse(job.problem, static_cast<int>(job.ranks.size()), job.strategies.front(), job.target);
    if (refusal) throw InvalidInput(refusal->reason);
  }
  if (!output.save_scenario.empty()) {
    proto::Scenario saved;
    *saved.mutable_recurrence() = scenario;
    save_scenario_file(output.save_scenario, saved);
  }
  std::vector<sim::RecurrenceOutcome> outcomes;
  {
    Progress progress(true);
    progress.show("computing the reference on one device");
    if (const auto free = sim::free_memory_bytes()) {
      sim::require_memory(job.problem, "one device's float64 tensors",
                          sim::test_data_bytes(job.problem, job.backward), *free);
    }
    const sim::RecurrenceTestData data(job.problem, job.seed);
    static_cast<void>(data.out());
    for (const RecurrenceStrategy& strategy : job.strategies) {
      const std::string prefix =
          str(outcomes.size() + 1, " of ", job.strategies.size(), ": ", to_string(strategy), ": ");
      outcomes.push_back(run_one(job, strategy, data, prefix, progress));
    }
  }
  if (!output.trace.empty() && outcomes.front().run)
    finish([&] { write_trace_file(output.trace, outcomes.front().run->traces); });
  fmt::print("{}", output.json ? sim::report_json(job, outcomes).dump(2) + "\n"
                               : printable(sim::report_text(job, outcomes)));
  std::fflush(stdout);
  const auto error = error_of(outcomes);
  return error ? exit_code(*error) : kSuccess;
}

}  // namespace cp::cli
