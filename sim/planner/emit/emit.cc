#include "sim/planner/emit/emit.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/transformer/memory_reading.h"
#include "sim/planner/emit/emitters.h"

namespace cp::sim {
namespace {

EmittedBody body_of(Framework framework, const EmitRequest& request) {
  switch (framework) {
    case Framework::megatron:
      return emit_megatron(request);
    case Framework::torchtitan:
      return emit_torchtitan(request);
    case Framework::deepspeed:
      return emit_deepspeed(request);
    case Framework::vllm:
      return emit_vllm(request);
    case Framework::cprun:
      return emit_cprun(request);
    case Framework::attention:
      return emit_attention(request);
  }
  return {};
}

// What the text is of: "llama-3.1-8b: training of 131072 tokens on 2 nodes of 8 GPUs, tp=8,cp=2".
std::string headline(const EmitRequest& request) {
  const EmitContext& context = request.context;
  return str(context.model, ": ", name(request.workload.phase), " of ", request.workload.seq_len,
             " tokens on ", context.nodes, context.nodes == 1 ? " node of " : " nodes of ",
             context.gpus_per_node, " GPUs, ", to_string(request.layout));
}

std::string numbers(const EmitRequest& request) {
  const Workload& w = request.workload;
  const std::string text = str("numbers: ", name(w.dtype), ", matmuls in ",
                               request.context.nvfp4_products ? "nvfp4"
                               : request.context.fp8_products ? "fp8"
                                                              : name(w.dtype));
  return w.phase == Phase::training
             ? str(text, ", gradients ", name(w.gradient_dtype), ", ", to_string(w.optimizer))
             : str(text, ", KV cache ", request.context.fp8_cache ? "fp8" : name(w.kv_dtype));
}

std::vector<std::string> comments(Framework framework, const EmitRequest& request, const Emitted& emitted) {
  const FrameworkFacts& of = facts(framework);
  const bool own = framework == Framework::cprun || framework == Framework::attention;
  const std::string version = own ? "" : str(" ", of.version);
  std::vector<std::string> lines = {str(of.title, version, ": ", headline(request)), numbers(request)};
  if (emitted.needed_bytes) {
    lines.push_back(str("memory: ", human_bytes(*emitted.needed_bytes), " of ",
                        human_bytes(request.context.usable_bytes), " per GPU",
                        emitted.fits ? "" : ": IT DOES NOT FIT"));
  }
  // The prediction is of the whole model, but cprun runs one layer's attention, or all in small.
  if (!request.context.predicted.empty() && !own)
    lines.push_back(str("predicted: ", request.context.predicted));
  if (!emitted.cannot.empty())
    lines.emplace_back("of the plan, this file does not say, or says differently:");
  for (const std::string& cannot : emitted.cannot) lines.push_back(str("  ", cannot));
  return lines;
}

std::string with_comments(Framework framework, const std::vector<std::string>& lines,
                          const std::string& body) {
  if (framework == Framework::deepspeed) {  // JSON has no comments; a key that nobody reads is the custom
    nlohmann::ordered_json json{{"_comment", lines}};
    json.update(nlohmann::ordered_json::parse(body));
    return json.dump(2) + "\n";
  }
  std::string text;
  for (const std::string& line : lines) text += str("# ", line, "\n");
  return text + body;
}

}  // namespace

Emitted emit(Framework framework, const Transformer& model, const Workload& workload,
             const ParallelLayout& layout, const EmitContext& context) {
  require_phase(framework, workload.phase);
  validate_model(model);
  validate_workload(workload);
  if (const std::optional<LayoutRefusal> refusal = refuse(model, workload, layout)) {
    throw InvalidInput(str("the layout ", to_string(layout), " cannot run: ", refusal->text()));
  }
  const std::int64_t gpus = std::int64_t{context.nodes} * context.gpus_per_node;
  if (layout.world() != gpus) {
    throw InvalidInput(str("the layout ", to_string(layout), " uses ", layout.world(),
                           " GPUs, but there are ", gpus, " on ", context.nodes, " nodes of ",
                           context.gpus_per_node, "; use a layout of ", gpus, " GPUs"));
  }
  const EmitRequest request{model, workload, layout, context};
  EmittedBody body = body_of(framework, request);
  Expressed expressed = express(framework, {model, workload, layout, context.fp8_products});
  Emitted emitted;
  emitted.cannot = context.unsaid;
  for (std::string& lost : expressed.lost) emitted.cannot.push_back(std::move(lost));
  for (std::string& note : body.notes) emitted.cannot.push_back(std::move(note));
  const FrameworkCase& run = expressed.run;
  if (context.memory && !refuse(model, run.workload, run.layout)) {
    const Memory memory = memory_of({model, run.workload, run.layout}, *context.memory);
    emitted.needed_bytes = memory.used() - memory.context;
    emitted.fits = *emitted.needed_bytes <= context.usable_bytes;
  }
  emitted.text = with_comments(framework, comments(framework, request, emitted), body.text);
  return emitted;
}

}  // namespace cp::sim
