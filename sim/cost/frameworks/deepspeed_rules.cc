// DeepSpeed (0.17 and later): a configuration, and what the program does beside it.
#include <utility>

#include "shared/base/text.h"
#include "sim/cost/frameworks/rules.h"

namespace cp::sim {
namespace {

constexpr FrameworkRule kDeepspeedRules[] = {
    {RulePart::degrees, "tp", "1 where parameters are sharded (zero=3)",
     "AutoTP training: ZeRO stages 0 to 2",
     [](FrameworkCase& said) {
       const ParallelLayout& layout = said.layout;
       return layout.tp == 1 || layout.sharding_size() == 1 || layout.keeps_whole_parameters()
                  ? std::string()
                  : str("tp=", layout.tp,
                        " beside sharded parameters: AutoTP trains with ZeRO stages 0 to 2, not 3");
     }},
    {RulePart::degrees, "sequence_parallel", "no", "deepspeed/module_inject/layers.py: LinearAllreduce",
     [](FrameworkCase& said) {
       const bool asked = said.layout.tp > 1 && std::exchange(said.layout.sequence_parallel, false);
       return std::string(asked ? "rows split over tp ranks: AutoTP all-reduces them, and each rank has all"
                                : "");
     }},
    {RulePart::degrees, "virtual_stages", "1", "deepspeed/runtime/pipe/schedule.py: TrainSchedule",
     [](FrameworkCase& said) {
       const int stages = std::exchange(said.layout.virtual_stages, 1);
       return stages == 1 ? std::string() : str("virtual_stages=", stages, ": the schedule is 1F1B");
     }},
    {RulePart::degrees, "reshard, sync, prefetch, bucket, threshold", "all, micro_batch, 1, 1, 0",
     "deepspeed/runtime/zero/stage3.py", lost_timing},
    {RulePart::degrees, "sharding", "dp_shard_cp",
     "ZeRO over sequence-parallel ranks: sequence_data_parallel_group",
     [](FrameworkCase& said) {
       return said.layout.sharding_size() > 1 ? lost_sharding(said, "sequence-parallel") : std::string();
     }},
    {RulePart::degrees, "order", "tp-cp-dp-pp", "deepspeed/utils/groups.py",
     [](FrameworkCase& said) {
       const AxisOrder order = std::exchange(said.layout.order, AxisOrder::tp_cp_dp_pp);
       return order == AxisOrder::tp_cp_dp_pp
                  ? std::string()
                  : str("order ", to_string(order),
                        ": tensor- and then sequence-parallel ranks are neighbours");
     }},
    {RulePart::strategy, "strategy", "ulysses", "sequence_parallel_size; ALST",
     [](FrameworkCase& said) {
       if (said.layout.cp == 1 || said.ring_size() == 1) return std::string();
       const std::string asked = to_string(said.layout.strategy, said.layout.cp);
       said.layout.strategy = whole_ulysses(said.layout.cp);
       return str("strategy ", asked, ": it is Ulysses over all ", said.layout.cp, " ranks");
     }},
    {RulePart::strategy, "pieces", "1", "deepspeed/sequence/layer.py: DistributedAttention", lost_pieces},
    {RulePart::strategy, "keys", "heads", "deepspeed/sequence/layer.py: DistributedAttention", lost_keys},
    {RulePart::strategy, "window_balance, scan_balance", "same",
     "deepspeed/sequence/layer.py: DistributedAttention", lost_own_balances},
    {RulePart::strategy, "merges", "in_turn", "deepspeed/sequence/layer.py: DistributedAttention",
     lost_merges},
    {RulePart::recompute, "recompute", "none, full", "gradient_checkpointing_enable() of transformers",
     [](FrameworkCase& said) {
       const Recompute asked = said.layout.recompute;
       if (asked.kind == Recompute::Kind::none || asked.kind == Recompute::Kind::full) return std::string();
       said.layout.recompute = {Recompute::Kind::full, 1};
       return str("recompute=", to_string(asked),
                  ": gradient_checkpointing_enable() computes every layer again");
     }},
    {RulePart::savings, "activations", "gpu; host with recompute=full",
     "activation_checkpointing.cpu_checkpointing; ALST: checkpoints of transformers to the CPU",
     [](FrameworkCase& said) {
       const bool full = said.layout.recompute.kind == Recompute::Kind::full;
       return full ? std::string() : lost_savings(said, "", "checkpoints alone go to host memory");
     }},
    {RulePart::workload, "--optimizer",
     "adamw, sgd, sgd_momentum, with :offload where replicas may share states",
     "deepspeed.ai/docs/config-json: optimizer, offload_optimizer",
     [](FrameworkCase& said) {
       Optimizer& optimizer = said.workload.optimizer;
       const DType asked = std::exchange(optimizer.state_dtype, DType::f32);
       if (asked == DType::f32 || optimizer.states == 0) return std::string();
       if (optimizer.name == "adamw_16") optimizer.name = "adamw";
       return str("states in ", name(asked), ": they are in f32");
     }},
    {RulePart::workload, "--mtp-layers", "0", "models of transformers", lost_prediction_layers},
    {RulePart::workload, "--linear-dtype", "that of --dtype", "deepspeed.ai/docs/config-json: bf16, fp16",
     [](FrameworkCase& said) {
       return std::string(
           std::exchange(said.fp8_products, false) ? "FP8 products: a configuration has bf16 and fp16" : "");
     }},
};

}  // namespace

std::span<const FrameworkRule> deepspeed_rules() { return kDeepspeedRules; }

}  // namespace cp::sim
