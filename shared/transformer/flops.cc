#include "shared/transformer/flops.h"

#include "shared/context_parallel/pair_counts.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {

double allowed_pairs(const Transformer& model, const Workload& workload, const LayerKind& kind) {
  const AttentionProblem problem = attention_problem(model, workload, {}, kind);
  return static_cast<double>(pairs_of_queries(problem, index_range(0, problem.q_len)));
}

double allowed_pairs(const Transformer& model, const Workload& workload) {
  const std::vector<std::int64_t> layers = layers_of_kinds(model);
  double pairs = 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    if (layers[kind] > 0)
      pairs += static_cast<double>(layers[kind]) * allowed_pairs(model, workload, model.kinds[kind]);
  }
  return pairs;
}

ModelFlops model_flops(const Transformer& model, const Workload& workload) {
  const ParameterCounts counts = parameter_counts(model);
  const auto batch = static_cast<double>(workload.global_batch);
  const bool training = workload.phase == Phase::training;
  const double rows =
      workload.phase == Phase::decode ? 1 : static_cast<double>(workload.seq_len - workload.cached);
  const double passes = training ? 3 : 1;
  const auto head = static_cast<double>(model.vocab * model.hidden);
  const std::int64_t biases = model.qkv_bias ? model.q_width() + 2 * model.kv_width() : 0;
  const auto layers = static_cast<double>(counts.active - model.vocab * model.hidden - counts.final_norm -
                                          model.layers * (counts.norms + biases));
  ModelFlops flops;
  flops.products = 2 * passes * batch * (rows * layers + (training ? rows : 1) * head);
  flops.attention = 2 * passes * batch *
                    static_cast<double>((model.head_dim + model.v_head_dim()) * model.q_heads) *
                    allowed_pairs(model, workload);
  return flops;
}

}  // namespace cp
