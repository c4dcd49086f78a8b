// Answers to the questions around a plan, as text, as CSV and as JSON: one sentence, a head of three lines,
// one table, and what remains to be said. Tables have layouts in short (shared/transformer/short_layout.h),
// CSV and JSON whole.
//
// JSON: schema ("cpsim.plan.sweep/1", maximize, minimize, sensitivity, next_experiment), summary, and
//   sweep, maximize, minimize  varies (the flag: "seq-len"; null: nothing does), assumptions [text], notes [text],
//     rows [{value (of what varies: number or text, else null), seq_len, global_batch, nodes, gpus, cluster,
//           best or null, tokens_per_s of all GPUs, vs_first (times those of the first row that has any; both
//           null without best), why}]
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
#include "sim/present/plan/plan_head.h"

namespace cp::sim {

// The best for one value of what varies.
struct PlanRow {
  std::optional<std::int64_t> number;   // the value, where it is a number
  std::string name;                     // and where it is none
  std::int64_t seq_len = 0, batch = 0;  // 0, like nodes and gpus: the value makes no question
  int nodes = 0, gpus = 0;
  std::string cluster;
  std::optional<sim::Candidate> best;  // none: `why` says the reason
  std::string why;
  bool refused = false;  // nothing is legal, rather than that nothing fits
};
struct PlanRows {
  std::string question;  // "sweep", "maximize" or "minimize"
  std::string summary;
  Phase phase = Phase::training;
  PlanHead head;
  std::vector<std::string> assumptions;
  std::string varies;  // "seq-len", "cluster"; empty: nothing does, and rows differ in length or GPUs
  std::vector<PlanRow> rows;
  std::vector<std::pair<std::string, std::string>> notes;  // titles and texts
};
// Of a row, of all GPUs; 0 without a best one.
double tokens_per_s(const PlanRow& row);

// `brief`, here and below: without the head, and without what to type next.
std::string rows_text(const PlanRows& rows, bool brief = false);
std::string rows_json(const PlanRows& rows);
// A line of names (varies, value, seq_len, global_batch, nodes, gpus, cluster, layout, step_us, low_us,
// high_us, tokens_per_s, vs_first, tokens_per_s_per_gpu, mfu, exposed_us, bound, counted_bytes, usable_bytes,
// why), and one for each row; of rows without a best one, only what is known and why.
std::string rows_csv(const PlanRows& rows);

// Of the fastest layouts of an answer.
std::string sensitivity_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             bool brief = false);
std::string sensitivity_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity);
// `then`: the command that plans with the cluster that a measurement writes.
std::string experiments_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then, bool brief = false);
std::string experiments_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then);

// "llama-3.1-8b, 131,072 tokens, 16 GPUs of dgx-h100"; without a length where that is 0.
std::string asked_of(const sim::PlanQuestion& question, std::int64_t seq_len);

}  // namespace cp::sim
