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
  // Why the row is not scored; empty if it is.
  std::string oddity;
};
std::vector<PublishedStep> published_steps();

// The step in words: "llama-3.1-8b, 8 GPUs, 65536 tokens, training, cp 2 head_tail, FP8 products".
std::string words_of(const PublishedStep& step);

// Predicts the measured value, in the step's metric.
double predict(const PublishedStep& step);
std::string unit_of(PublishedStep::Metric metric);

// published_measurements() predicts all steps of end_to_end.csv that are no memory, in the order of the
// table.
//
// nearest_measurement() looks among these steps, and those of training_steps.csv, for one of the question's
// phase. It returns the step whose model, length, number and kind of GPUs and precision of products are most
// like the question's, scored or not. If one row has two readings, it takes the one that shares attention as
// evenly as `layout` does. For decode it returns a row of servers under load (served_rows.h). Returns nothing
// if nobody measured a step of the phase.
std::vector<NearestMeasurement> published_measurements();
std::optional<NearestMeasurement> nearest_measurement(const PlanQuestion& question,
                                                      const ParallelLayout* layout = nullptr);

}  // namespace cp::sim
