// A step of training with data: every loss, gradient, parameter and state is that of one device.
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/plan.h"
#include "sim/fuzz/draw.h"
#include "sim/fuzz/judge.h"
#include "sim/proof/step/prove_step.h"
#include "sim/proof/step/scale_down.h"
#include "sim/scenario/model_step.h"

namespace cp::sim {
namespace {

// The largest case, by its tokens. Chosen: the reference makes five steps in float64.
constexpr std::int64_t kMostProvedTokens = 1 << 11;

// Of a tensor of two elements four runs say little about how far roundings move it, and a run of the fuzzer
// compares a million tensors. Chosen: in f32 a hundredth of a defect is still a thousand times more.
constexpr double kGrowthOfMany = 16;

}  // namespace

void judge_proof(const proto::Proof& job, Trial& trial) {
  StepRequest request = make_step_request(job.step());
  if (!job.step().has_expert_imbalance()) make_room_at_experts(request);
  if (request.layout.world() > kMostProvedRanks || request.workload.tokens() > kMostProvedTokens) {
    throw InvalidInput(str("the case has ", request.workload.tokens(), " tokens on ", request.layout.world(),
                           " ranks, of ", kMostProvedTokens, " on ", kMostProvedRanks, " at most"));
  }
  if (const auto refusal = refuse(request.model, request.workload, request.layout))
    throw InvalidInput(refusal->text());
  StepProofOptions options;
  options.growth = kGrowthOfMany;
  options.ignored = job.ignored(), options.without_label = job.without_label();
  std::string finding;
  for (std::uint64_t seed = job.seed(); seed < job.seed() + kProofSeeds; ++seed) {
    options.seed = seed;
    MixerPlanCache cache;
    const StepPlans plans = [&](StepPart part, int stage, std::int64_t micro_batch) {
      std::vector<Plan> all = step_plans(request, part, stage, &cache, micro_batch);
      for (const Plan& plan : all) trial.hasher().add(digest(plan));
      return all;
    };
    const StepProof proof = trial.property("proving", [&] { return prove_step(request, plans, options); });
    trial.ran();
    if (proof.holds() || proof.is_unknown()) return;
    finding = proof.finding();
  }
  throw trial.failure("proof", str(to_string(request.layout), ": ", finding));
}

}  // namespace cp::sim
