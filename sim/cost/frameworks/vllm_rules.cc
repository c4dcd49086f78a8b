// vLLM (0.11 and later).
#include <utility>

#include "shared/base/text.h"
#include "sim/cost/frameworks/rules.h"

namespace cp::sim {
namespace {

constexpr std::string_view kEngineArguments = "vllm/engine/arg_utils.py";

constexpr FrameworkRule kVllmRules[] = {
    {RulePart::degrees, "cp",
     "prefill: any, by the attention backend's own strategy; decode: 1, since the ranks that share a cache "
     "are tensor-parallel ones",
     "--prefill-context-parallel-size, --decode-context-parallel-size",
     [](FrameworkCase& said) {
       ParallelLayout& layout = said.layout;
       if (said.workload.phase != Phase::decode || layout.cp == 1) return std::string();
       const int tp = layout.tp, cp = std::exchange(layout.cp, 1);
       layout.tp = tp * cp, layout.strategy = {};
       return str("cp=", cp, " beside tp=", tp, ": weights are split over all ", layout.tp,
                  " ranks, and the cache by kv heads, and over those that hold the same ones");
     }},
    {RulePart::degrees, "sequence_parallel", "prefill: either; decode: no",
     "vllm/config/compilation.py: PassConfig, for graphs of many tokens",
     [](FrameworkCase& said) {
       ParallelLayout& layout = said.layout;
       if (said.workload.phase != Phase::decode || layout.tp == 1 || !layout.sequence_parallel)
         return std::string();
       layout.sequence_parallel = false;
       return std::string("rows split over tp ranks: with a token of each request they are all-reduced");
     }},
    {RulePart::degrees, "ep", "1, or all ranks of a stage", "--enable-expert-parallel",
     [](FrameworkCase& said) {
       const ParallelLayout& layout = said.layout;
       const int ranks = layout.world() / layout.pp;
       return layout.ep == 1 || layout.ep == ranks
                  ? std::string()
                  : str("ep=", layout.ep, ": experts are split over all ", ranks, " ranks of a stage");
     }},
    {RulePart::degrees, "order", "tp-cp-dp-pp", "vllm/distributed/parallel_state.py",
     [](FrameworkCase& said) {
       const AxisOrder order = std::exchange(said.layout.order, AxisOrder::tp_cp_dp_pp);
       return order == AxisOrder::tp_cp_dp_pp
                  ? std::string()
                  : str("order ", to_string(order),
                        ": tensor-parallel ranks are neighbours, then those of pipelines");
     }},
    {RulePart::workload, "--kv-dtype", "that of --dtype, bf16", kEngineArguments,
     [](FrameworkCase& said) {
       Workload& workload = said.workload;
       if (workload.kv_dtype == workload.dtype || workload.kv_dtype == DType::bf16) return std::string();
       const DType asked = std::exchange(workload.kv_dtype, workload.dtype);
       return str("a cache in ", name(asked), ": it is in ", name(workload.dtype));
     }},
};

}  // namespace

std::span<const FrameworkRule> vllm_rules() { return kVllmRules; }

}  // namespace cp::sim
