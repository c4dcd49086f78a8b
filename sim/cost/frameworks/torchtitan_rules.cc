// torchtitan 0.2 (2025).
#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "sim/cost/frameworks/rules.h"

namespace cp::sim {
namespace {

constexpr std::string_view kConfig = "torchtitan/config/job_config.py";
constexpr std::string_view kRotate = "context_parallel_rotate_method: allgather, alltoall";

constexpr FrameworkRule kTorchtitanRules[] = {
    {RulePart::degrees, "tp", "a divisor of the kv heads", "attention views its kv heads by tp ranks",
     [](FrameworkCase& said) {
       const std::int64_t kv_heads = said.model.kv_heads;
       return kv_heads % said.layout.tp == 0
                  ? std::string()
                  : str("n_kv_heads=", kv_heads, " shared by tensor_parallel_degree=", said.layout.tp,
                        " ranks: use a degree that divides ", kv_heads);
     }},
    {RulePart::degrees, "pp", "stages of equal layers; the first and the last may have fewer",
     "pipeline_parallel_layers_per_stage, ..._first_stage_less_layers, ..._last_stage_less_layers",
     [](FrameworkCase& said) {
       const std::vector<std::int64_t> layers = stage_layers(said.model, said.layout);
       const std::int64_t most = *std::max_element(layers.begin(), layers.end());
       const bool even = layers.size() < 3 || std::all_of(layers.begin() + 1, layers.end() - 1,
                                                          [&](std::int64_t count) { return count == most; });
       return even ? std::string()
                   : str("stages of ", join(layers, "/"),
                         " layers: only the first and the last may have fewer");
     }},
    {RulePart::degrees, "ep", "cp and more", "expert_parallel_degree: dp2ep",
     [](FrameworkCase& said) {
       const ParallelLayout& layout = said.layout;
       return layout.ep == 1 || layout.ep >= layout.cp
                  ? std::string()
                  : str("ep=", layout.ep, " of cp=", layout.cp,
                        ": experts are split over all cp ranks at least");
     }},
    {RulePart::degrees, "sharding", "dp_shard_cp", "torchtitan/distributed/parallel_dims.py: dp_shard_cp",
     [](FrameworkCase& said) { return lost_sharding(said, "context-parallel"); }},
    {RulePart::degrees, "zero", "3; with pp 1, the nearest to what it runs there",
     "torchtitan/distributed/fsdp: reshard_after_forward",
     [](FrameworkCase& said) {
       ParallelLayout& layout = said.layout;
       if (layout.pp > 1 || layout.zero_stage() == 3) return std::string();
       return str("zero=", std::exchange(layout.zero, 0),
                  ": fully_shard gathers parameters for each micro-batch");
     }},
    {RulePart::degrees, "reshard, sync, prefetch, bucket, threshold",
     "all, micro_batch, 1, 1, 0: written as fully_shard has it by default", "torchtitan/distributed/fsdp",
     lost_timing},
    {RulePart::degrees, "sequence_parallel", "yes", "torchtitan/models/llama3/infra/parallelize.py",
     [](FrameworkCase& said) {
       const bool asked = said.layout.tp > 1 && !std::exchange(said.layout.sequence_parallel, true);
       return std::string(asked ? "whole rows on all tp ranks: norms are always sequence-parallel" : "");
     }},
    {RulePart::degrees, "order", "tp-cp-dp-pp", "torchtitan/distributed/parallel_dims.py",
     [](FrameworkCase& said) {
       const AxisOrder order = std::exchange(said.layout.order, AxisOrder::tp_cp_dp_pp);
       return order == AxisOrder::tp_cp_dp_pp ? std::string()
                                              : str("order ", to_string(order), ": it is always tp-cp-dp-pp");
     }},
    {RulePart::strategy, "ulysses_degree", "1", kRotate,
     [](FrameworkCase& said) {
       if (said.layout.cp == 1) return std::string();
       Strategy& strategy = said.layout.strategy;
       const bool whole = strategy.ulysses_degree == said.layout.cp;
       const int ulysses = std::exchange(strategy.ulysses_degree, 1);
       if (ulysses == 1) return std::string();
       if (whole) strategy.core = Core::ring, strategy.balance = {Balance::Kind::head_tail, 1};
       return str("ulysses_degree=", ulysses, ": keys and values rotate over all ", said.layout.cp,
                  " ranks instead");
     }},
    {RulePart::strategy, "strategy", "ring (alltoall), all_gather, rings with rotation=all_gather", kRotate,
     [](FrameworkCase& said) -> std::string {
       return said.layout.cp == 1 ? "" : lost_core(said, Framework::torchtitan);
     }},
    {RulePart::strategy, "inner_ring", "none: one ring", kRotate,
     [](FrameworkCase& said) {
       const int inner = said.layout.cp == 1 ? 1 : std::exchange(said.layout.strategy.inner_ring, 1);
       return inner == 1 ? std::string() : str("double rings of ", inner, ": alltoall is one ring");
     }},
    {RulePart::strategy, "balance", "head_tail", "context_parallel(): its round-robin load balance",
     [](FrameworkCase& said) {
       if (said.layout.cp == 1) return std::string();
       Balance& balance = said.layout.strategy.balance;
       const Balance asked = std::exchange(balance, Balance{Balance::Kind::head_tail, 1});
       return asked == balance
                  ? std::string()
                  : str("balance ", to_string(asked), ": causal attention is always split head_tail");
     }},
    {RulePart::strategy, "pieces", "1", kRotate, lost_pieces},
    {RulePart::strategy, "keys", "heads", kRotate, lost_keys},
    {RulePart::strategy, "window_balance, scan_balance", "same", kRotate, lost_own_balances},
    {RulePart::strategy, "slots", "2", kRotate, lost_slots},
    {RulePart::strategy, "merges", "in_turn", kRotate, lost_merges},
    {RulePart::recompute, "recompute", "none, full, every:K",
     "activation_checkpoint: none, full, selective with a number",
     [](FrameworkCase& said) -> std::string {
       if (said.layout.recompute.kind != Recompute::Kind::selective) return "";
       said.layout.recompute = {};
       return "selective without products: the option op computes every second product again";
     }},
    {RulePart::loss, "loss_chunks", "1", kConfig,
     [](FrameworkCase& said) { return lost_loss_chunks(said, "logits of all rows exist at once"); }},
    {RulePart::savings, "mlp_chunks", "1", kConfig,
     [](FrameworkCase& said) { return lost_savings(said, "an MLP computes all rows at once", ""); }},
    {RulePart::savings, "activations", "gpu", kConfig,
     [](FrameworkCase& said) { return lost_savings(said, "", "they stay on the GPU"); }},
    {RulePart::workload, "--mtp-layers", "0", "torchtitan/models", lost_prediction_layers},
    {RulePart::workload, "--attention-dropout", "0", "torchtitan/models", lost_dropout},
    {RulePart::workload, "--dtype", "bf16, f32", "mixed_precision_param",
     [](FrameworkCase& said) -> std::string {
       if (said.workload.dtype != DType::f16) return "";
       said.workload.dtype = DType::bf16;
       return "f16: mixed_precision_param is bfloat16 or float32";
     }},
    {RulePart::workload, "--gradient-dtype", "f32", "mixed_precision_reduce",
     [](FrameworkCase& said) {
       const DType asked = std::exchange(said.workload.gradient_dtype, DType::f32);
       return asked == DType::f32 ? std::string()
                                  : str("gradients in ", name(asked), ": they are reduced in f32");
     }},
    {RulePart::workload, "--optimizer", "adamw; adamw:offload moves parameters and gradients, too",
     "optimizer.name; training.enable_cpu_offload",
     [](FrameworkCase& said) {
       Optimizer& optimizer = said.workload.optimizer;
       const Optimizer asked = optimizer;
       std::vector<std::string> lost;
       if (!asked.is_adam()) lost.push_back(str(asked.name, ": the optimizers are Adam and AdamW"));
       if (asked.state_dtype != DType::f32)
         lost.push_back(str("states in ", name(asked.state_dtype), ": they are in f32"));
       if (lost.empty()) return std::string();
       optimizer = parse_optimizer(asked.offload ? "adamw:offload" : "adamw");
       return join(lost, "; ");
     }},
};

}  // namespace

std::span<const FrameworkRule> torchtitan_rules() { return kTorchtitanRules; }

}  // namespace cp::sim
