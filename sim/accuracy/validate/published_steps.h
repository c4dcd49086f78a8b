// Whole steps of whole models that other people measured (end_to_end.csv), as questions with their layouts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

struct PublishedStep {
  std::string where, source, what;
  PlanQuestion question;
  ParallelLayout layout;
  enum class Metric { tokens_per_s_per_gpu, milliseconds, peak_memory_gib } metric = Metric::milliseconds;
  double measured = 0;  // in the metric
  std::string oddity;   // why it is not scored; else empty
};
std::vector<PublishedStep> published_steps();

// "llama-3.1-8b, 8 GPUs, 65536 tokens, training, cp 2 head_tail, FP8 products"
std::string words_of(const PublishedStep& step);

// In the step's metric.
double predict(const PublishedStep& step);
std::string unit_of(PublishedStep::Metric metric);

// Predictions of all of them that are no memory, in the order of the table; and of those of the question's
// phase the one whose model, length, number of GPUs and precision of products are most like the question's,
// scored or not; of two readings of one row, that which shares attention as evenly as the layout does. None
// where nobody measured a step of the phase; of decode a row of servers under load (served_rows.h).
std::vector<NearestMeasurement> published_measurements();
std::optional<NearestMeasurement> nearest_measurement(const PlanQuestion& question,
                                                      const ParallelLayout* layout = nullptr);

}  // namespace cp::sim
