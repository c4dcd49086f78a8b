#include "shared/training/trainer.h"

#include <vector>

#include "shared/base/index.h"
#include "shared/transformer/rank_groups.h"

namespace cp {

Trainer::Trainer(StepRequest request, Device& device, const StepBuffers::Values& values,
                 const std::function<void(const Plan&)>& before_use, DeviceMemory* memory)
    : request_(std::move(request)),
      dropout_(request_.workload.attention_dropout),
      device_(device),
      buffers_(request_, device.rank(), values, memory),
      before_use_(before_use) {
  const RankGroups groups(request_.layout, device.rank());
  // The tp ranks have the same losses.
  has_losses_ = groups.tp() == 0;
}

Trainer::Key Trainer::key(const PartRun& run) const {
  return {run.part, run.stage, sees_documents(run.part) ? first_alike_[idx(run.micro_batch)] : 0};
}

// Of all micro-batches before any runs.
void Trainer::make_plans(Documents documents, double dropout) {
  Workload& workload = request_.workload;
  if (has_plans_ && documents == workload.cu_seqlens_of_sequence && dropout == workload.attention_dropout)
    return;
  workload.cu_seqlens_of_sequence = std::move(documents), workload.attention_dropout = dropout;
  validate_workload(request_.workload);
  has_plans_ = true;
  std::map<Documents, std::int64_t> firsts;
  first_alike_.clear();
  for (std::int64_t micro_batch = 0; micro_batch < buffers_.micro_batches(); ++micro_batch)
    first_alike_.push_back(
        firsts.emplace(documents_of_micro_batch(request_, micro_batch), micro_batch).first->second);
  const auto is_old = [](const auto& entry) { return sees_documents(std::get<StepPart>(entry.first)); };
  std::erase_if(prepared_, is_old), std::erase_if(plans_, is_old), std::erase_if(kept_, is_old);
  MixerPlanCache cache;
  for (const std::vector<PartRun>* runs : {&buffers_.order().passes, &buffers_.order().updates}) {
    // Each plan in the place of its first run: ranks come to those that they compare in the same order, too.
    for (const PartRun& run : *runs) {
      const auto [plan, is_new] = plans_.try_emplace(key(run));
      if (!is_new) continue;
      plan->second = step_plan(request_, run.part, run.stage, device_.rank(), &cache, run.micro_batch);
      if (before_use_) before_use_(plan->second);
      buffers_.make_room(plan->second);
    }
  }
}

void Trainer::run(const std::vector<PartRun>& runs, RankTrace* trace) {
  enqueue_parts(
      runs, [this](const PartRun& run) -> PreparedPlan& { return prepare(run); }, buffers_, trace);
}

// Made ready when it runs first: ranks run plans in an order in which their peers do too. Each has memory of
// its own, and so two of a part are ready at once: one runs while the next one is prepared.
PreparedPlan& Trainer::prepare(const PartRun& run) {
  const Key of = key(run);
  std::unique_ptr<PreparedPlan>& prepared = prepared_[of];
  if (prepared) return *prepared;
  std::vector<Key>& kept = kept_[{run.part, run.stage}];
  if (kept.size() == 2) {
    prepared_.erase(kept.front());
    kept.erase(kept.begin());
  }
  const Plan& plan = plans_.at(of);
  prepared = std::make_unique<PreparedPlan>(device_, plan, buffers_.bind(plan, run), lane_of(run.part));
  kept.push_back(of);
  return *prepared;
}

StepSums Trainer::micro_batches(StepBatch batch, RankTrace* trace, Documents documents, double dropout) {
  make_plans(std::move(documents), dropout);
  buffers_.begin_step(std::move(batch));
  run(buffers_.order().passes, trace);
  return {0, buffers_.labelled(), 0};
}

double Trainer::own_losses() const {
  double sum = 0;
  if (has_losses_) buffers_.for_each_loss([&](const StepBuffers::RowLoss& row) { sum += row.loss; });
  return sum;
}

StepSums Trainer::step(StepBatch batch, RankTrace* trace, Documents documents) {
  StepSums sums = micro_batches(std::move(batch), trace, std::move(documents), dropout_);
  run(buffers_.order().updates, trace);
  device_.synchronize();
  sums.loss = own_losses();
  sums.gradient_norm = buffers_.norm();
  return sums;
}

StepSums Trainer::evaluate(StepBatch batch, RankTrace* trace, Documents documents) {
  StepSums sums = micro_batches(std::move(batch), trace, std::move(documents), 0);
  device_.synchronize();
  sums.loss = own_losses();
  return sums;
}

}  // namespace cp
