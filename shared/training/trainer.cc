#include "shared/training/trainer.h"

#include <tuple>
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
  for (const StepPart part : parts_of(request_)) {
    for (const int stage : buffers_.stages()) {
      const auto [plan, is_new] =
          plans_.emplace(std::pair(part, stage), step_plan(request_, part, stage, device.rank(), &cache));
      if (before_use) before_use(plan->second);
    }
  }
}

void Trainer::run(StepPart part, int stage, std::int64_t micro_batch, RankTrace* trace) {
  const Plan& plan = plans_.at({part, stage});
  const Bindings bindings = buffers_.bind(plan, stage, micro_batch);
  // Made ready when it runs first: ranks run plans in an order in which their peers do too.
  std::unique_ptr<PreparedPlan>& prepared = prepared_[{part, stage}];
  if (!prepared) prepared = std::make_unique<PreparedPlan>(device_, plan, bindings);
  prepared->run(bindings, nullptr, trace);
}

StepSums Trainer::micro_batches(StepBatch batch, RankTrace* trace) {
  buffers_.begin_step(std::move(batch));
  run_micro_batches(request_, buffers_, [&](StepPart part, int stage, std::int64_t micro_batch) {
    run(part, stage, micro_batch, trace);
  });
  return {0, buffers_.labelled(), 0};
}

double Trainer::own_losses() const {
  double sum = 0;
  if (has_losses_) buffers_.for_each_loss([&](const StepBuffers::RowLoss& row) { sum += row.loss; });
  return sum;
}

StepSums Trainer::step(StepBatch batch, RankTrace* trace) {
  StepSums sums = micro_batches(std::move(batch), trace);
  run_updates(request_, buffers_, [&](StepPart part, int stage, std::int64_t micro_batch) {
    run(part, stage, micro_batch, trace);
  });
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
