// Megatron-LM (core 0.12 and later) with Transformer Engine.
#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "sim/cost/frameworks/rules.h"

namespace cp::sim {
namespace {

constexpr std::string_view kArguments = "megatron/training/arguments.py";
constexpr std::string_view kContextParallel = "--cp-comm-type: p2p, a2a, allgather, a2a+p2p";

constexpr FrameworkRule kMegatronRules[] = {
    {RulePart::degrees, "tp", "a divisor of the kv heads", kArguments,
     [](FrameworkCase& said) {
       const std::int64_t kv_heads = said.model.kv_heads;
       return kv_heads % said.layout.tp == 0 ? std::string()
                                             : str("num-query-groups=", kv_heads,
                                                   " shared by tensor-model-parallel-size=", said.layout.tp,
                                                   " ranks: use a size that divides ", kv_heads);
     }},
    {RulePart::degrees, "sequence_parallel", "either; yes where experts are split beside tp",
     "megatron/core/transformer/transformer_config.py",
     [](FrameworkCase& said) {
       ParallelLayout& layout = said.layout;
       if (layout.tp == 1 || layout.ep == 1 || layout.sequence_parallel) return std::string();
       layout.sequence_parallel = true;
       return str("sequence_parallel=no with tp=", layout.tp, " and ep=", layout.ep,
                  ": experts beside tensor parallelism need --sequence-parallel");
     }},
    {RulePart::degrees, "reshard, sync, prefetch, bucket, threshold", "all, micro_batch, 1, 1, 0",
     "data-parallel-sharding-strategy", lost_timing},
    {RulePart::degrees, "sharding", "dp_shard_cp",
     "the distributed optimizer counts context-parallel ranks as data-parallel ones",
     [](FrameworkCase& said) {
       return said.layout.sharding_size() > 1 ? lost_sharding(said, "context-parallel") : std::string();
     }},
    {RulePart::degrees, "order", "tp-cp-dp-pp, tp-cp-pp-dp",
     "megatron/core/parallel_state.py: tp-cp-ep-dp-pp, --use-tp-pp-dp-mapping",
     [](FrameworkCase& said) {
       ParallelLayout& layout = said.layout;
       const AxisOrder order = layout.order;
       if (order == AxisOrder::cp_tp_dp_pp) {
         layout.order = AxisOrder::tp_cp_dp_pp;
         if (layout.cp > 1 && layout.tp > 1)
           return std::string("order cp-tp-dp-pp: neighbours differ in tp first; it is tp-cp-dp-pp");
       }
       if (order == AxisOrder::tp_dp_cp_pp) {
         layout.order = AxisOrder::tp_cp_dp_pp;
         if (layout.cp > 1 && layout.dp() > 1)
           return std::string("order tp-dp-cp-pp: cp ranks are nearer than dp ranks; it is tp-cp-dp-pp");
       }
       return std::string();
     }},
    {RulePart::strategy, "strategy", "ring, all_gather, ulysses, and rings between Ulysses groups",
     kContextParallel,
     [](FrameworkCase& said) -> std::string {
       if (said.layout.cp == 1 || said.ring_size() == 1) return "";
       Strategy& strategy = said.layout.strategy;
       const Core core = strategy.core;
       if (strategy.ulysses_degree > 1) {
         strategy.core = Core::ring;
         return core == Core::ring
                    ? ""
                    : "a core other than the ring between Ulysses groups: a2a+p2p is a ring of them";
       }
       return lost_core(said, Framework::megatron);
     }},
    {RulePart::strategy, "ulysses_degree", "a divisor of the kv heads of a tp rank",
     "Transformer Engine: the all-to-all splits query groups",
     [](FrameworkCase& said) {
       const int ulysses = said.layout.cp == 1 ? 1 : said.layout.strategy.ulysses_degree;
       const std::int64_t groups = std::max<std::int64_t>(1, said.model.kv_heads / said.layout.tp);
       return groups % ulysses == 0 ? std::string()
                                    : str("an all-to-all of ", ulysses, " ranks over the ", groups,
                                          " query groups of each: its degree must divide them");
     }},
    {RulePart::strategy, "axis_order", "ulysses_inner",
     "--hierarchical-context-parallel-sizes: neighbours first",
     [](FrameworkCase& said) {
       Strategy& strategy = said.layout.strategy;
       const bool lost = said.layout.cp > 1 && said.ring_size() > 1 && strategy.ulysses_degree > 1 &&
                         !strategy.ulysses_inner;
       strategy.ulysses_inner = true;
       return std::string(lost ? "rings of neighbours: with a2a+p2p neighbours form the all-to-all groups"
                               : "");
     }},
    {RulePart::strategy, "inner_ring", "none: one ring", kContextParallel,
     [](FrameworkCase& said) {
       const int inner = said.layout.cp == 1 ? 1 : std::exchange(said.layout.strategy.inner_ring, 1);
       return inner == 1 ? std::string() : str("double rings of ", inner, ": p2p is one ring");
     }},
    {RulePart::strategy, "rotation", "exchange", kContextParallel,
     [](FrameworkCase& said) {
       Strategy& strategy = said.layout.strategy;
       const bool lost = said.layout.cp > 1 && strategy.rotation == Strategy::Rotation::all_gather;
       strategy.rotation = Strategy::Rotation::exchange;
       return std::string(lost ? "rotation=all_gather: p2p passes block by block" : "");
     }},
    {RulePart::strategy, "balance", "head_tail", "megatron/training/utils.py: get_batch_on_this_cp_rank",
     [](FrameworkCase& said) {
       if (said.layout.cp == 1 || said.ring_size() == 1) return std::string();
       Balance& balance = said.layout.strategy.balance;
       const Balance asked = std::exchange(balance, Balance{Balance::Kind::head_tail, 1});
       return asked == balance ? std::string()
                               : str("balance ", to_string(asked), ": batches are always split head_tail");
     }},
    {RulePart::strategy, "pieces", "1", kContextParallel, lost_pieces},
    {RulePart::strategy, "keys", "heads", kContextParallel, lost_keys},
    {RulePart::strategy, "window_balance, scan_balance", "same", kContextParallel, lost_own_balances},
    {RulePart::strategy, "slots", "2", kContextParallel, lost_slots},
    {RulePart::strategy, "merges", "in_turn", kContextParallel, lost_merges},
    {RulePart::recompute, "recompute",
     "none, full and every:K (as many layers, the first ones of each stage); selective of a model with "
     "experts",
     "--recompute-granularity, --recompute-method block, --recompute-modules",
     [](FrameworkCase& said) -> std::string {
       if (said.layout.recompute.kind != Recompute::Kind::selective || said.model.experts) return "";
       said.layout.recompute = {};
       return "the activation function of a dense MLP again without its products: it is kept; the module mlp "
              "would "
              "compute the products again, too";
     }},
    {RulePart::loss, "loss_chunks", "1", "--cross-entropy-loss-fusion",
     [](FrameworkCase& said) {
       return lost_loss_chunks(
           said, "logits of all rows exist at once; --cross-entropy-loss-fusion saves a copy of them");
     }},
    {RulePart::savings, "mlp_chunks", "1", kArguments,
     [](FrameworkCase& said) { return lost_savings(said, "an MLP computes all rows at once", ""); }},
    {RulePart::savings, "activations", "gpu; host with recompute=none and pp=1",
     "--cpu-offloading-num-layers: not with recomputation, not with a pipeline",
     [](FrameworkCase& said) {
       const bool plain = said.layout.recompute.kind == Recompute::Kind::none && said.layout.pp == 1;
       return plain ? std::string()
                    : lost_savings(said, "", "not with recomputation, and not with pipeline stages");
     }},
    {RulePart::workload, "--gradient-dtype", "f32, bf16", "--grad-reduce-in-bf16",
     [](FrameworkCase& said) -> std::string {
       if (said.workload.gradient_dtype != DType::f16) return "";
       said.workload.gradient_dtype = DType::f32;
       return "gradients in f16: they are added up in f32";
     }},
};

}  // namespace

std::span<const FrameworkRule> megatron_rules() { return kMegatronRules; }

}  // namespace cp::sim
