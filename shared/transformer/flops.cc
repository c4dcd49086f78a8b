#include "shared/transformer/flops.h"

#include <cstdint>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/pair_counts.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

double allowed_pairs(const Transformer& model, const Workload& workload, const LayerKind& kind) {
  if (kind.mixer != Mixer::attention) return 0;
  const AttentionProblem problem = attention_problem(model, workload, {}, kind);
  return static_cast<double>(pairs_of_queries(problem, index_range(0, problem.q_len)));
}

double allowed_pairs(const Transformer& model, const Workload& workload) {
  std::vector<std::int64_t> layers = layers_of_kinds(model);
  if (workload.phase == Phase::training) layers[idx(model.last_kind())] += model.prediction_layers;
  double pairs = 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    if (layers[kind] > 0)
      pairs += static_cast<double>(layers[kind]) * allowed_pairs(model, workload, model.kinds[kind]);
  }
  return pairs;
}

ModelFlops model_flops(const Transformer& model, const Workload& workload) {
  if (workload.phase != Phase::training && model.prediction_layers > 0) {  // serving has none
    Transformer served = model;
    served.prediction_layers = 0;
    return model_flops(served, workload);
  }
  const ParameterCounts counts = parameter_counts(model);
  const auto batch = static_cast<double>(workload.global_batch);
  const bool training = workload.phase == Phase::training;
  const double rows =
      workload.phase == Phase::decode ? 1 : static_cast<double>(workload.seq_len - workload.cached);
  const double passes = training ? 3 : 1;
  const auto head = static_cast<double>(model.vocab * model.hidden);
  const auto layers = static_cast<double>(counts.multiplied);
  ModelFlops flops;
  flops.products =
      2 * passes * batch *
      (rows * layers + (training ? rows * static_cast<double>(1 + model.prediction_layers) : 1) * head);
  // Absorbed queries meet whole latent rows, and their values; kv_up's products are as many as otherwise.
  const bool absorbed = latent_use(model, workload, {}) == LatentUse::absorbed;
  const std::int64_t of_pair =
      absorbed ? model.latent->kv_row() + model.latent->kv_rank : model.head_dim + model.v_head_dim();
  flops.attention =
      2 * passes * batch * static_cast<double>(of_pair * model.q_heads) * allowed_pairs(model, workload);
  if (const auto& recurrence = model.recurrence) {
    const std::int64_t state = recurrence->value_heads * recurrence->key_dim * recurrence->value_dim,
                       touched = recurrence->rule == RecurrenceRule::delta ? 3 : 2;
    std::vector<std::int64_t> layers_of_kind = layers_of_kinds(model);
    layers_of_kind[idx(model.last_kind())] += model.prediction_layers;
    const std::int64_t of_model = count_of(layers_of_parts(model, layers_of_kind), Mixer::recurrence);
    flops.recurrence = 2 * passes * batch * rows * static_cast<double>(of_model * touched * state);
  }
  return flops;
}

}  // namespace cp
