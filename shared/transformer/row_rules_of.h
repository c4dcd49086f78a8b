// The rules of a step's row kernels (shared/plan/row_operations.h), as the model, the workload and the rank's
// part of them have it.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/transformer/step_writer.h"

namespace cp {

// Of a norm over the first `width` columns of rows; what stands behind them is copied.
NormRule norm_rule(const Transformer& model, std::int64_t width);
// Of the norms of q and k, which stand side by side.
NormRule qk_norm_rule(const StepContext& context);

// From what the projections give to what attention takes. Rows of q, k and v have their heads side by side;
// where a latent row is expanded, each head of kv_up's output has the part of its key that is not rotated,
// and then its value. Of a head the last rotated_dim() columns are rotated, but for the first of them if they
// are odd; and where a share of them is rotated, the first ones. In layers of a kind without positions
// nothing is rotated, and queries may be scaled (QueryTemperature). The rule has no moves in serving, whose
// kernels have shapes only.
enum class RotaryForm : std::uint8_t {
  qkv,          // {q, k and v} to {q, k, v}
  qk_and_v,     // {q and k, v} to {q, k, v}
  latent_rows,  // {q, latent row and key's rotated part} to {q, the same rotated}
  expanded,     // {q, expanded rows, key's rotated part} to {q, k, v}
};
RowRule rotary_rule(const StepContext& context, RotaryForm form, int kind);

// Of the outputs of a recurrence: each head by itself (gated delta net), or the heads of each key head
// together (Mamba-2).
GatedNormRule gated_norm_rule(const StepContext& context);
ActivationRule activation_rule(const Transformer& model);         // of dense and shared MLPs
ActivationRule expert_activation_rule(const Transformer& model);  // whose rows have the router's weights
VocabularyRule vocabulary_rule(const StepContext& context);       // of the rank's part of the vocabulary
RouterRule router_rule(const StepContext& context);
// Of the gate of the shared MLP, which is the router of one expert that all rows choose: its only weight is
// the sigmoid of its logit.
RouterRule shared_gate_rule();
SlotsRule slots_rule(const StepContext& context);
OptimizerRule optimizer_rule(const Optimizer& optimizer);

}  // namespace cp
