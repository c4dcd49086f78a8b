#include "cli/cpsim/estimate/recurrence.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/printable.h"
#include "cli/common/progress_line.h"
#include "shared/base/error.h"
#include "shared/base/units.h"
#include "sim/base/number_text.h"
#include "sim/cost/cluster/used_part.h"
#include "sim/cost/timeline/estimate.h"
#include "sim/present/table.h"

namespace cp::cli {
namespace {

using nlohmann::ordered_json;

struct PassCost {
  double time_us = 0, exposed_us = 0;
  std::int64_t bytes_received = 0, peak_bytes = 0;  // of the rank that has most
};

struct StrategyCost {
  RecurrenceStrategy strategy;
  std::string refused;  // if it is not empty, there are no passes
  PassCost forward, backward;
  double total_us() const { return forward.time_us + backward.time_us; }
};

PassCost cost_of(const RecurrenceRequest& request, RecurrencePass pass, const sim::RecurrenceJob& job,
                 const RecurrenceEstimate& asked) {
  sim::TimelineOptions options;
  options.collectives = asked.collectives;
  const Rank last = *std::max_element(job.ranks.begin(), job.ranks.end());
  const sim::RepeatedCalls calls =
      sim::repeated_calls(recurrence_plans(request, pass, job.target),
                          sim::used_part(asked.cluster, last + 1), asked.software, options);
  PassCost cost{calls.time_us, 0, 0, 0};
  for (const sim::RankTimeline& rank : calls.timeline.ranks) {
    cost.exposed_us = std::max(cost.exposed_us, rank.exposed_comm_ns / kNsPerUs);
    cost.bytes_received = std::max(cost.bytes_received, rank.bytes_received);
    cost.peak_bytes = std::max(cost.peak_bytes, rank.peak_bytes);
  }
  return cost;
}

ordered_json json_of(const PassCost& cost) {
  return {{"time_us", cost.time_us},
          {"exposed_comm_us", cost.exposed_us},
          {"bytes_received", cost.bytes_received},
          {"peak_bytes", cost.peak_bytes}};
}

std::string text_of(const sim::RecurrenceJob& job, const RecurrenceEstimate& asked,
                    const std::vector<StrategyCost>& costs) {
  using sim::Align;
  std::vector<sim::Column> columns = {{"strategy"}};
  for (const auto& [title, asks] :
       {std::pair("forward", asked.forward), std::pair("backward", asked.backward)}) {
    if (!asks) continue;
    for (const char* of_pass : {title, "exposed", "received"}) columns.push_back({of_pass, Align::right});
  }
  columns.push_back({"peak per rank", Align::right});
  sim::Table table(columns);
  std::string refused;
  for (const StrategyCost& cost : costs) {
    if (!cost.refused.empty()) {
      refused += fmt::format("{}: refused: {}\n", to_string(cost.strategy), cost.refused);
      continue;
    }
    std::vector<std::string> cells = {to_string(cost.strategy)};
    for (const PassCost* pass : {&cost.forward, &cost.backward}) {
      if (pass == &cost.forward ? !asked.forward : !asked.backward) continue;
      cells.push_back(sim::human_us(pass->time_us)), cells.push_back(sim::human_us(pass->exposed_us));
      cells.push_back(human_bytes(pass->bytes_received));
    }
    cells.push_back(human_bytes(std::max(cost.forward.peak_bytes, cost.backward.peak_bytes)));
    table.add_row(std::move(cells));
  }
  return fmt::format(
      "{} on {}, {} of {} GPUs of {}, software {}\n\n{}\n{}Kernels of recurrences are taken to reach 80 % of "
      "the GPU's products or memory, whichever takes longer: no plan takes measured rates yet.\n"
      "What is received is that of the rank that receives most.\n",
      to_string(job.problem), job.where, job.ranks.size(), asked.cluster.num_gpus(), asked.cluster.name,
      asked.software.name, table.text(), refused.empty() ? "" : refused + "\n");
}

}  // namespace

int estimate_recurrence(const sim::RecurrenceJob& job, const RecurrenceEstimate& asked) {
  const int cp = static_cast<int>(job.ranks.size());
  std::vector<StrategyCost> costs;
  {
    Progress progress;
    for (const RecurrenceStrategy& strategy : job.strategies) {
      StrategyCost& cost = costs.emplace_back(StrategyCost{strategy, {}, {}, {}});
      if (const auto refusal = refuse(job.problem, cp, strategy, job.target)) {
        if (job.strategies.size() == 1) throw InvalidInput(refusal->reason);
        cost.refused = refusal->reason;
        continue;
      }
      progress.show(str("planning and replaying ", cp, " ranks: ", to_string(strategy)));
      const RecurrenceRequest request{job.problem, job.ranks, strategy, asked.backward};
      if (asked.forward) cost.forward = cost_of(request, RecurrencePass::forward, job, asked);
      if (asked.backward) cost.backward = cost_of(request, RecurrencePass::backward, job, asked);
    }
  }
  std::stable_sort(costs.begin(), costs.end(), [](const StrategyCost& a, const StrategyCost& b) {
    if (a.refused.empty() != b.refused.empty()) return a.refused.empty();
    return a.total_us() < b.total_us();
  });
  if (!asked.json) {
    fmt::print("{}", printable(text_of(job, asked, costs)));
    return kSuccess;
  }
  ordered_json json = {{"problem", to_string(job.problem)},
                       {"mesh", job.where},
                       {"cluster", asked.cluster.name},
                       {"nodes", asked.cluster.nodes},
                       {"software", asked.software.name}};
  for (const StrategyCost& cost : costs) {
    ordered_json row = {{"strategy", to_string(cost.strategy)}};
    if (!cost.refused.empty()) {
      row["refused"] = cost.refused;
    } else {
      if (asked.forward) row["forward"] = json_of(cost.forward);
      if (asked.backward) row["backward"] = json_of(cost.backward);
    }
    json["strategies"].push_back(std::move(row));
  }
  fmt::print("{}\n", json.dump(2));
  return kSuccess;
}

}  // namespace cp::cli
