// One layout on the timeline: plans of the parts of a step, replayed and put together.
#pragma once

#include <optional>
#include <vector>

#include "shared/transformer/step_plan.h"
#include "sim/cost/schedule/pipeline.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// For one thread; keeps what layouts share.
class Evaluator {
 public:
  // The question must outlive this. `factors`: how much slower than the question's cluster all is.
  explicit Evaluator(const PlanQuestion& question, const RateFactors& factors = {});

  // The layout must not be refused. Candidate::rank is left at 0.
  Candidate evaluate(const ParallelLayout& layout);
  // None where it takes longer than the limit and that shows before the end; a pipeline's first stages often
  // show it.
  std::optional<Candidate> evaluate(const ParallelLayout& layout, double limit_ns);
  // When each pass of each micro-batch runs, of a layout with stages in training: by pipeline rank.
  PipelineTimes schedule(const ParallelLayout& layout);
  // The plan of the rank that is replayed.
  Plan plan_of(const ParallelLayout& layout, StepPart part, int stage);

 private:
  struct Parts;  // sums of clocks
  class Stages;  // of a pipeline

  StepClock clock_of(const StepRequest& request, StepPart part, int stage);
  Parts whole_step(const StepRequest& request);
  std::optional<Parts> pipelined(const StepRequest& request, double limit_ns, PipelineTimes* times = nullptr);
  Parts served(const StepRequest& request);
  Parts aggregated(StepRequest request);
  Candidate summary(const ParallelLayout& layout, const Parts& parts) const;
  std::vector<PartTime> list(const Parts& parts) const;

  const PlanQuestion& question_;
  const RateFactors factors_;
  AttentionPlanCache attention_plans_;
};

// What a step reads or writes: all tokens of the batch in training and prefill, one of each request in decode.
std::int64_t tokens_of_step(const Workload& workload);

// Model flops over the peak of all GPUs and the time.
double model_flops_utilisation(const PlanQuestion& question, double step_us);

}  // namespace cp::sim
