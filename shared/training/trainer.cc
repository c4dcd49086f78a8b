#include "shared/training/trainer.h"

#include <vector>

#include "shared/transformer/rank_groups.h"

namespace cp {

Trainer::Trainer(StepRequest request, Device& device, const StepBuffers::Values& values,
                 const std::function<void(const Plan&)>& before_use, DeviceMemory* memory)
    : request_(std::move(request)), device_(device), buffers_(request_, device.rank(), values, memory) {
  const RankGroups groups(request_.layout, device.rank());
  // The tp ranks have the same losses.
  has_losses_ = groups.tp() == 0;
  MixerPlanCache cache;
  for (const std::vector<PartRun>* runs : {&buffers_.order().passes, &buffers_.order().updates}) {
    // Each plan in the place of its first run: ranks come to those that they compare in the same order, too.
    for (const auto& [part, stage, micro_batch, slot] : *runs) {
      const auto [plan, is_new] = plans_.try_emplace({part, stage});
      if (!is_new) continue;
      plan->second = step_plan(request_, part, stage, device.rank(), &cache);
      if (before_use) before_use(plan->second);
      buffers_.make_room(plan->second);
    }
  }
}

void Trainer::run(const std::vector<PartRun>& runs, RankTrace* trace) {
  for (const PartRun& run : runs) {
    const Plan& plan = plans_.at({run.part, run.stage});
    const Bindings bindings = buffers_.bind(plan, run);
    // Made ready when it runs first: ranks run plans in an order in which their peers do too.
    std::unique_ptr<PreparedPlan>& prepared = prepared_[{run.part, run.stage}];
    if (!prepared) prepared = std::make_unique<PreparedPlan>(device_, plan, bindings);
    prepared->run(bindings, nullptr, trace);
  }
}

StepSums Trainer::micro_batches(StepBatch batch, RankTrace* trace) {
  buffers_.begin_step(std::move(batch));
  run(buffers_.order().passes, trace);
  return {0, buffers_.labelled(), 0};
}

double Trainer::own_losses() const {
  double sum = 0;
  if (has_losses_) buffers_.for_each_loss([&](const StepBuffers::RowLoss& row) { sum += row.loss; });
  return sum;
}

StepSums Trainer::step(StepBatch batch, RankTrace* trace) {
  StepSums sums = micro_batches(std::move(batch), trace);
  run(buffers_.order().updates, trace);
  device_.synchronize();
  sums.loss = own_losses();
  sums.gradient_norm = buffers_.norm();
  return sums;
}

StepSums Trainer::evaluate(StepBatch batch, RankTrace* trace) {
  StepSums sums = micro_batches(std::move(batch), trace);
  device_.synchronize();
  sums.loss = own_losses();
  return sums;
}

}  // namespace cp
