// Answers to the questions around a plan, as text, as CSV and as JSON. A text has one sentence, a head of
// three lines, one table, and what remains to be said. Its tables write layouts in short
// (shared/transformer/short_layout.h); CSV and JSON write them whole.
//
// JSON: schema ("cpsim.plan.sweep/1", or maximize, minimize, sensitivity, next_experiment), summary, and
//   sweep, maximize, minimize  varies (the flag: "seq-len"; null: nothing does), assumptions [text], notes
//      [text], rows [{value (of what varies: number or text, else null), seq_len, global_batch, nodes, gpus,
//            cluster, best or null, tokens_per_s of all GPUs, vs_first (times those of the first row that has
//            any; both null without best), why}]
//      best: layout, step_us, low_us, high_us, tokens_per_s_per_gpu, mfu, exposed_us, bound, counted_bytes,
//            usable_bytes
//   sensitivity                layouts [{layout, step_us}], changes [{rate, factor, step_us of each layout,
//      order}], robust order: the layouts' numbers, from 1, the fastest first
//   next_experiment            measurements [{rate, settles, regret_us, profile, other, quick, turns
//                              [{factor, layout, gain_share}]}], the one that settles most first; experiments
//                              [{layout, expected_us, settles, separates}], robust, candidates [{what,
//                              saves_us, commands [text]}] (next_measurement.h), the one that saves most
//                              first, then
//      settles: how much it settles of what not knowing the rates costs, as a share
//      turns: from which factors of the rate on another layout is the best
//      then: the command that plans with what was measured
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

// The best layout for one value of what varies.
struct PlanRow {
  std::optional<std::int64_t> number;   // the value, if it is a number
  std::string name;                     // the value, if it is none
  std::int64_t seq_len = 0, batch = 0;  // 0, as nodes and gpus, if the value makes no question
  int nodes = 0, gpus = 0;
  std::string cluster;
  std::optional<sim::Candidate> best;  // absent: `why` says the reason
  std::string why;
  bool refused = false;  // no layout is legal (else: none fits)
};
struct PlanRows {
  std::string question;  // "sweep", "maximize" or "minimize"
  std::string summary;
  Phase phase = Phase::training;
  PlanHead head;
  std::vector<std::string> assumptions;
  // "seq-len", "cluster". Empty: nothing varies by itself, and rows differ in length or GPUs.
  std::string varies;
  std::vector<PlanRow> rows;
  std::vector<std::pair<std::string, std::string>> notes;  // titles and texts
};
// The tokens per second of all GPUs; 0 if the row has no best layout.
double tokens_per_s(const PlanRow& row);

// The text of the rows. `brief`, here and below, leaves out the head, and what to type next.
std::string rows_text(const PlanRows& rows, bool brief = false);
std::string rows_json(const PlanRows& rows);
// The rows as CSV: a line of names (varies, value, seq_len, global_batch, nodes, gpus, cluster, layout,
// step_us, low_us, high_us, tokens_per_s, vs_first, tokens_per_s_per_gpu, mfu, exposed_us, bound,
// counted_bytes, usable_bytes, why), and a line for each row. Rows without a best layout have only what is
// known, and why.
std::string rows_csv(const PlanRows& rows);

// How the fastest layouts of an answer change with the rates.
std::string sensitivity_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             bool brief = false);
std::string sensitivity_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity);
// What to measure next. `then` is the command that plans with the cluster that a measurement writes.
std::string experiments_text(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then, bool brief = false);
std::string experiments_json(const sim::PlanAnswer& answer, const sim::Sensitivity& sensitivity,
                             const std::string& then);

// What was asked: "llama-3.1-8b, 131,072 tokens, 16 GPUs of dgx-h100". The length is left out if it is 0.
std::string asked_of(const sim::PlanQuestion& question, std::int64_t seq_len);

}  // namespace cp::sim
