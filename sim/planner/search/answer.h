// PlanAnswer: what `cpsim plan` answers. It holds layouts in the order of their times, what each time is made
// of, and what became of all other layouts. It is plain data; the first screen, --json, --csv and the report
// are four forms of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/transformer/memory.h"
#include "shared/transformer/parallel_layout.h"
#include "sim/cost/timeline/rate_times.h"
#include "sim/cost/timeline/timeline.h"
#include "sim/planner/search/decision.h"
#include "sim/planner/search/question.h"
#include "sim/planner/search/time_part.h"

namespace cp::sim {

// Where the time of a step goes on the slowest rank, in microseconds of one whole step. The parts add up to
// the step's time.
struct PartTime {
  TimePart part = TimePart::attention;
  double us = 0;
};

struct Candidate {
  ParallelLayout layout;
  int rank = 0;  // place in the order; 1 is the fastest
  // In training the step of the global batch, in prefill the time to the first token, in decode the time
  // between tokens.
  double step_us = 0;
  // One time in ten the step takes less than low_us, and one in ten more than high_us, by what is known of
  // the rates (doubt.h). Doubts that are common to all layouts are included.
  double low_us = 0, high_us = 0;
  // The chance, in [0, 1], that a layout of its kind (kind_of() of ranking.h) is the fastest of all that were
  // replayed.
  double chance = 0;
  double regret_us = 0;  // how much longer than the fastest it is expected to take
  // Decode: the time to the first token. Where the same GPUs read prompts between tokens, from a request's
  // arrival on; else how long the prompts of all requests take that are read at once (first_token.h), of the
  // layouts that are shown, and of all under a limit of it.
  std::optional<double> ttft_us;
  double tokens_per_s_per_gpu = 0;
  // Flops of the model over the peak of all GPUs, in [0, 1]. What is recomputed does not count, and of
  // attention only allowed pairs do.
  double mfu = 0;
  double exposed_us = 0;                 // communication that nothing hides
  TimePart bound = TimePart::attention;  // the largest part; bound_text() says it in words
  std::vector<PartTime> parts;           // each once, in the order in which the step's plans have them
  // Chains of operations that may take the whole step, in us as the rates are believed to be. The first is
  // the longest one; the others would be the longest if rates were other than believed. In a pipeline they
  // are the busiest rank's, stretched to the whole step.
  std::vector<RateTimes> chains;
  Memory memory;
  std::int64_t usable_bytes = 0;
  // What usable_bytes limits, times the least and the most that real runs took of their predictions
  // (MemoryWidth).
  std::int64_t memory_low_bytes = 0, memory_high_bytes = 0;
  double nvlink_utilisation = 0,
         nic_utilisation = 0;  // of the GPU's port and its share of a NIC, over the step

  std::int64_t left_bytes() const { return usable_bytes - (memory.used() - memory.context); }
  bool fits() const { return left_bytes() >= 0; }
  // Whether it fits even if it takes as much more memory than predicted as real runs were measured to take.
  bool likely_fits() const { return memory_high_bytes <= usable_bytes; }
};

// The best layout of a kind: "pure CP", "TP + CP", "with PP" or "baseline". `why` tells in words how far it
// is from the best of all, part by part: "+12.1 ms exposed cp, -3.0 ms products".
struct ClassBest {
  std::string name;
  std::optional<Candidate> candidate;  // absent if nothing of the kind fits; `why` says the reason then
  std::string why;
  std::string found = {};  // baseline: what the search chose for the keys that were not given
};

struct SearchCounts {
  std::int64_t enumerated = 0;                                 // all layouts, legal or not
  std::vector<std::pair<std::string, std::int64_t>> rejected;  // by reason, most first
  std::int64_t out_of_memory = 0;
  std::int64_t pruned = 0;    // left out because their lower bound (bound.h) is too slow
  std::int64_t replayed = 0;  // timed on the timeline
  double seconds = 0;
};

// The row of the published tables that is nearest to the question.
struct NearestMeasurement {
  // For example "torchtitan llama3 h100 2024-12 table 2", "Llama-3.1-8B, 8 GPUs, cp 2, 65,536 tokens".
  std::string source, what;
  std::string metric;  // with its unit
  double measured = 0, predicted = 0;
  bool is_rate = false;       // the metric is tokens per second, not a time
  std::string unscored = {};  // why the row does not count in scores; empty if it does
  // The error of the time, whatever the metric. It is positive if the prediction is slower than what was
  // measured.
  double error() const { return (is_rate ? measured / predicted : predicted / measured) - 1; }
};

// One bar of the chosen layout's timeline, from the rank that is replayed (pipelines: a rank of each stage).
struct ReportSpan {
  int rank = 0;
  std::string stream, label;
  SpanKind kind = SpanKind::kernel;
  double begin_us = 0, end_us = 0;
};

struct PlanAnswer {
  PlanQuestion question;
  std::vector<Candidate> best;     // in order; question.top of them, and more for the report
  std::vector<ClassBest> classes;  // the baseline, if there is one, is the last
  std::vector<Candidate> all;      // every layout that was replayed, in order of time, for the scatter plot
  SearchCounts counts;
  // One layout of each kind that is worth trying, the likeliest first. They are the fewest kinds such that
  // one of them has the fastest layout in nine cases of ten (decision.h).
  std::vector<ParallelLayout> worth_trying;
  std::vector<Worth> worths;       // what it is worth to know each rate, the largest first
  double strategies_worth_us = 0;  // what it is worth to time a layer's attention by each strategy
  std::optional<NearestMeasurement> nearest;
  std::vector<NearestMeasurement> published;  // all rows that can be predicted, for the report
  std::vector<ReportSpan> timeline;           // of the best
  std::vector<std::string> warnings;          // the question's, and of the search
  // Of a search that was stopped: no layout that it did not replay takes less than this. 0: it came to its
  // end, or was stopped before anything was known.
  double least_left_us = 0;
  std::string next_command;
  std::string run_command;  // what trains the best layout, in small; empty if nothing does
};

}  // namespace cp::sim
