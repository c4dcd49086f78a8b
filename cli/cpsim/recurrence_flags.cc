#include "cli/cpsim/recurrence_flags.h"

#include <string>
#include <utility>

#include "cli/common/flags.h"
#include "shared/base/error.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/recurrence_request.h"

namespace cp::cli {

void add_recurrence_flags(FlagSet app, ScenarioFlags<proto::Recurrence>& flags) {
  using Job = proto::Recurrence;
  using Text = const std::string&;
  add_field(app, flags, "--recurrence", "RULE",
            "A recurrent layer instead of attention: delta (gated delta net) or decay (Mamba-2). Its "
            "strategies are sequential, recursive_doubling, all_gather and heads [all_gather]",
            [](Job& job, Text text) { job.set_rule(text); });
  add_field(app, flags, "--key-heads", "N", "How many heads q and k have, with --recurrence [4]",
            [](Job& job, Text text) { job.set_key_heads(parse_whole("--key-heads", text, 1)); });
  add_field(app, flags, "--value-heads", "N",
            "How many heads values and states have, with --recurrence [as many as q and k]",
            [](Job& job, Text text) { job.set_value_heads(parse_whole("--value-heads", text, 1)); });
}

proto::Scenario scenario_of(const ScenarioFlags<proto::Attention>& attention,
                            const ScenarioFlags<proto::Recurrence>& recurrence) {
  proto::Scenario scenario;
  if (!attention.scenario.empty()) scenario = read_scenario_of("run", attention.scenario);
  // Flags say something else than the mesh, whatever it was made of.
  if (scenario.has_run()) *scenario.mutable_run() = sim::with_mesh(scenario.run());
  if (scenario.has_recurrence()) *scenario.mutable_recurrence() = sim::with_mesh(scenario.recurrence());
  if (!scenario.has_recurrence() && recurrence.changes.empty()) {
    *scenario.mutable_run() = attention.apply_to(scenario.run());
    return scenario;
  }
  if (scenario.has_run())
    throw InvalidInput(str("--scenario ", attention.scenario,
                           " is of attention; leave --recurrence and its heads out, or the file"));
  proto::Recurrence job = sim::recurrence_of(attention.apply_to(sim::flags_of(scenario.recurrence())),
                                             recurrence.apply_to(scenario.recurrence()));
  if (job.rule().empty())
    throw InvalidInput("--key-heads and --value-heads are of a recurrence; add --recurrence delta or decay");
  *scenario.mutable_recurrence() = std::move(job);
  return scenario;
}

}  // namespace cp::cli
