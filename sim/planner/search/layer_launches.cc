#include "sim/planner/search/layer_launches.h"

#include <algorithm>
#include <variant>

#include "shared/transformer/step_plan.h"

namespace cp::sim {
namespace {

// Kernels before the loss and from there on. On one GPU all of them run on one stream.
LayerLaunches launches_of(const Plan& plan, bool fused_rows) {
  LayerLaunches launches;
  bool backward = false;
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    if (kernel == nullptr) continue;
    const auto* rows = std::get_if<RowKernel>(kernel);
    backward = backward || (rows != nullptr && rows->operation == RowOperation::cross_entropy);
    if (fused_rows && (std::holds_alternative<Accumulate>(*kernel) || std::holds_alternative<Fill>(*kernel)))
      continue;
    (backward ? launches.backward : launches.forward) += static_cast<double>(ref.count);
  }
  return launches;
}

// The step of a model with these layers, on one GPU. A plan's kernels do not depend on its sizes but for
// experts: where rows do not divide among them, the last ones have steps of their own. So they divide here.
StepRequest request_of(const PlanQuestion& question, const std::vector<LayerKind>& layers) {
  StepRequest request{question.model, question.workload, {}};
  Transformer& model = request.model;
  set_layers(model, layers);
  model.layers = static_cast<std::int64_t>(layers.size());
  if (!model.has(Mixer::recurrence)) model.recurrence.reset();
  model.prediction_layers = 0;  // each is a layer of a kind, and what it has beside that is left out
  Workload& workload = request.workload;
  const std::int64_t experts = model.experts ? model.experts->count : 1;
  workload.seq_len = experts * ceil_div(8, experts);
  workload.global_batch = 1, workload.cached = 0, workload.cu_seqlens.clear();
  if (workload.phase == Phase::decode) workload.cached = workload.seq_len - 1, workload.new_tokens = 1;
  // Gradients that the optimizer takes from elsewhere, or in another dtype, are copied or rounded outside of
  // layers, and not in every layout.
  workload.gradient_dtype = DType::f32, workload.optimizer = {}, workload.expert_imbalance = 1;
  return request;
}

}  // namespace

std::vector<LayerLaunches> launches_of_kinds(const PlanQuestion& question) {
  const LayerKind& attention = first_attention(question.model);
  const auto of = [&](const std::vector<LayerKind>& layers) {
    const StepRequest request = request_of(question, layers);
    if (refuse(request.model, request.workload, request.layout)) return LayerLaunches{};
    return launches_of(step_plan(request, parts_of(request).front(), 0, 0), question.software.fused_rows);
  };
  // A layer is what one more of it adds to the plan.
  const LayerLaunches one = of({attention});
  std::vector<LayerLaunches> launches;
  for (const LayerKind& kind : question.model.kinds) {
    const LayerLaunches both = of({attention, kind});
    launches.push_back(
        {std::max(0.0, both.forward - one.forward), std::max(0.0, both.backward - one.backward)});
  }
  return launches;
}

}  // namespace cp::sim
