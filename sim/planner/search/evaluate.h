// Evaluator: the time of one layout. It makes the plans of the parts of a step, replays them on the timeline
// and adds them up.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "shared/transformer/memory_reading.h"
#include "shared/transformer/pipeline.h"
#include "shared/transformer/step_plan.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/planner/search/answer.h"
#include "sim/planner/search/known_parts.h"
#include "sim/planner/search/pipeline_bound.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// For one thread. It keeps what several layouts share: the plans of attention, and what is known of parts.
class Evaluator {
 public:
  // The question must outlive this. The time of each rate is multiplied by `factors` (1.1: a tenth slower
  // than the question's cluster says). Evaluators of the same question and factors may share what they know.
  explicit Evaluator(const PlanQuestion& question, const RateFactors& factors = {},
                     std::shared_ptr<KnownParts> known = std::make_shared<KnownParts>());

  // The layout must not be refused. Candidate::rank is left at 0.
  Candidate evaluate(const ParallelLayout& layout);
  // Returns nothing if it becomes clear before the end that the step takes longer than `limit_ns`. In a
  // pipeline the first stages often show it, with the least that the others take (`least`, if it has stages).
  // A result may still be longer than the limit. With one, the memory of a layout that does not fit may be
  // that of its busiest ranks, though others need more.
  std::optional<Candidate> evaluate(const ParallelLayout& layout, double limit_ns,
                                    const PipelineBound& least = {});
  // What bounds the layout's step, by rate: the chain of evaluate(), without reading any memory.
  RateTimes chain(const ParallelLayout& layout);
  // In training: what evaluate() counts behind the last pass, reductions and the optimizer of the rank that
  // has the head, in ns. All members of a family (layout_space.h) have the same.
  double update_ns(const ParallelLayout& layout);
  // For a layout with pipeline stages in training: when each pass of each micro-batch runs, by pipeline rank.
  PipelineTimes schedule(const ParallelLayout& layout);
  // The plan of the rank that stands for its stage in the replay.
  Plan plan_of(const ParallelLayout& layout, StepPart part, int stage);

 private:
  struct Parts;       // the sums of the clocks of a step's parts
  class Stages;       // the stages of a pipeline
  class LateReading;  // the memory of a step's parts

  // The rank that stands for its stage.
  static Rank rank_of(const StepRequest& request, StepPart part, int stage);
  // Where there is a reading, the part's memory is added to it.
  StepClock clock_of(const StepRequest& request, StepPart part, int stage, LateReading* reading = nullptr);
  // The same, where that rank is known.
  StepClock clock_of(const StepRequest& request, StepPart part, int stage, Rank self, LateReading* reading);
  // Of a part of training that was replayed before; else null.
  std::shared_ptr<const StepClock> known_clock(const StepRequest& request, StepPart part, int stage,
                                               Rank self) const;
  // Of any rank; nothing is replayed. Null where nothing is known yet.
  std::shared_ptr<const PlanMemory> known_memory(const StepRequest& request, StepPart part, int stage,
                                                 Rank self) const;
  // `made` is the part's plan, where it was made before.
  PlanMemory memory_of(const StepRequest& request, StepPart part, int stage, Rank self,
                       std::optional<UnplacedPlan> made);
  StepClock replay(const Plan& plan) const;
  // Of these four, memory is read where there is a reading.
  std::optional<Parts> parts_of(const StepRequest& request, double limit_ns, const PipelineBound& least,
                                LateReading* reading);
  Parts whole_step(const StepRequest& request, LateReading* reading);
  std::optional<Parts> pipelined(const StepRequest& request, double limit_ns, const PipelineBound& least,
                                 LateReading* reading, PipelineTimes* times = nullptr);
  Parts served(const StepRequest& request, LateReading* reading);
  Parts aggregated(StepRequest request);
  RateTimes chain_of(const Parts& parts) const;
  Candidate summary(const ParallelLayout& layout, const Parts& parts, const Memory& memory) const;
  std::vector<PartTime> list(const Parts& parts) const;

  const PlanQuestion& question_;
  const RateFactors factors_;
  const MemoryRules rules_;
  MixerPlanCache mixer_plans_;
  const std::shared_ptr<KnownParts> known_;
};

// What a step reads or writes: all tokens of the batch in training and prefill, one of each request in
// decode.
std::int64_t tokens_of_step(const Workload& workload);

// Model flops over the peak of all GPUs and the time.
double model_flops_utilisation(const PlanQuestion& question, double step_us);

}  // namespace cp::sim
