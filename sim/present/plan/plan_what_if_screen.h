// Answers to the questions around a plan, as text and as JSON: one sentence, one table, and what remains to
// be said.
//
// JSON: schema ("cpsim.plan.sweep/1", maximize, minimize, sensitivity, next_experiment), summary, and
//   sweep, maximize, minimize  rows [{seq_len, nodes, gpus, best or null, why}], notes [text]
//     best: layout, step_us, low_us, high_us, tokens_per_s_per_gpu, mfu, exposed_us, bound, counted_bytes,
//           usable_bytes
//   sensitivity                layouts [{layout, step_us}], changes [{rate, factor, step_us of each layout,
//     order}], robust order: the layouts' numbers, from 1, the fastest first
//   next_experiment            measurements [{rate, settles, regret_us, profile, other, quick, turns
//                              [{factor, layout, gain_share}]}], the one that settles most first; experiments
//                              [{layout, expected_us, settles, separates}], robust, candidates [{what, saves_us,
//                              commands [text]}] (next_measurement.h), the one that saves most first, then
//     settles: share of what not knowing the rates costs; turns: from which factor of the rate on which
//              layout is the best
//     then: the command that plans with what was measured
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/sensitivity.h"

namespace cp::sim {

// The answer at a length, on a number of nodes.
struct PlanRow {
  std::int64_t seq_len = 0;
  int nodes = 0, gpus = 0;
  std::optional<sim::Candidate> best;  // none: `why` says the reason
  std::string why;
};
struct PlanRows {
  std::string question;  // "sweep", "maximize" or "minimize"
  std::string summary;
  Phase phase = Phase::training;
  std::vector<std::pair<std::string, std::string>> inputs;  // as plan_inputs gives them, without what varies
  std::vector<PlanRow> rows;
  std::vector<std::pair<std::string, std::string>> notes;  // titles and texts
};

std::string rows_text(const PlanRows& rows);
std::string rows_json(const PlanRows& rows);

// Of the fastest layouts of an answer.
std::string sensitivity_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity);
std::string sensitivity_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity);
// `then`: the command that plans with the cluster that a measurement writes.
std::string experiments_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then);
std::string experiments_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then);

// "llama-3.1-8b, 131,072 tokens, 16 GPUs of dgx-h100"; without a length where that is 0.
std::string asked_of(const sim::PlanQuestion& question, std::int64_t seq_len);

}  // namespace cp::sim
