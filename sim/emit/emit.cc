#include "sim/emit/emit.h"

#include <array>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/emit/emitters.h"

namespace cp::sim {
namespace {

struct Emitter {
  Framework framework;
  std::string_view name;
  bool trains, serves;
  Emitted (*emit)(const EmitRequest&);
};

constexpr std::array<Emitter, 5> kEmitters = {{
    {Framework::megatron, "megatron", true, false, emit_megatron},
    {Framework::torchtitan, "torchtitan", true, false, emit_torchtitan},
    {Framework::deepspeed, "deepspeed", true, false, emit_deepspeed},
    {Framework::vllm, "vllm", false, true, emit_vllm},
    {Framework::cprun, "cprun", true, true, emit_cprun},
}};

const Emitter& emitter_of(Framework framework) { return kEmitters[static_cast<std::size_t>(framework)]; }

std::string names_of(bool (*chosen)(const Emitter&)) {
  std::vector<std::string_view> names;
  for (const Emitter& emitter : kEmitters) {
    if (chosen(emitter)) names.push_back(emitter.name);
  }
  return join(names, ", ");
}

}  // namespace

std::string_view name(Framework framework) { return emitter_of(framework).name; }

Framework parse_framework(std::string_view text) {
  for (const Emitter& emitter : kEmitters) {
    if (emitter.name == text) return emitter.framework;
  }
  throw InvalidInput(
      str("unknown framework '", text, "'; use one of ", names_of([](const Emitter&) { return true; })));
}

void require_phase(Framework framework, Phase phase) {
  const Emitter& emitter = emitter_of(framework);
  const bool training = phase == Phase::training;
  if (training ? emitter.trains : emitter.serves) return;
  throw InvalidInput(str(emitter.name, training ? " does not train" : " does not serve",
                         ", and the phase is ", name(phase), "; use one of ",
                         names_of(training ? +[](const Emitter& e) { return e.trains; }
                                           : +[](const Emitter& e) { return e.serves; })));
}

std::string headline(const EmitRequest& request) {
  const EmitContext& context = request.context;
  return str(context.model, ": ", name(request.workload.phase), " of ", request.workload.seq_len,
             " tokens on ", context.nodes, context.nodes == 1 ? " node of " : " nodes of ",
             context.gpus_per_node, " GPUs, ", to_string(request.layout));
}

Emitted emit(Framework framework, const Transformer& model, const Workload& workload,
             const ParallelLayout& layout, const EmitContext& context) {
  require_phase(framework, workload.phase);
  validate_model(model);
  validate_workload(workload);
  if (const std::optional<LayoutRefusal> refusal = refuse(model, workload, layout)) {
    throw InvalidInput(str("the layout ", to_string(layout), " cannot run: ", refusal->reason));
  }
  const std::int64_t gpus = std::int64_t{context.nodes} * context.gpus_per_node;
  if (layout.world() != gpus) {
    throw InvalidInput(str("the layout ", to_string(layout), " is of ", layout.world(), " GPUs, not of the ",
                           gpus, " on ", context.nodes, " nodes of ", context.gpus_per_node));
  }
  return emitter_of(framework).emit({model, workload, layout, context});
}

}  // namespace cp::sim
