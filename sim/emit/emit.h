// A layout, handed over: the flags or configuration of a framework that runs the model so, or a scenario of its attention.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/model.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/workload.h"

namespace cp::sim {

enum class Framework : std::uint8_t {
  megatron,    // flags of Megatron-LM's pretrain_gpt.py, one to a line
  torchtitan,  // TOML
  deepspeed,   // JSON
  vllm,        // a command line of vllm serve
  cprun,  // traces/scenario.proto: the attention of one micro-batch on one tensor-parallel rank, for cpsim run and cprun
};
std::string_view name(Framework framework);
Framework parse_framework(std::string_view text);  // throws InvalidInput that lists them
// Throws InvalidInput for a training framework that is to serve and a serving one that is to train, with those that do.
void require_phase(Framework framework, Phase phase);

struct EmitContext {
  std::string model;  // as the user named it: a preset, or the path of a config.json
  int nodes = 1, gpus_per_node = 8;
};

struct Emitted {
  std::string text;
  // What the layout has and the text does not say, because the framework has no word for it, with what it does instead: one
  // sentence each.
  std::vector<std::string> cannot;
};

// Throws InvalidInput as require_phase() does, for a layout that refuse() refuses, and for a context whose GPUs are not as many as the layout's.
Emitted emit(Framework framework, const Transformer& model, const Workload& workload,
             const ParallelLayout& layout, const EmitContext& context);

}  // namespace cp::sim
