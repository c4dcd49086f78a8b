// emit(): writes a layout as the flags or the configuration of a framework that runs the model with it. For
// cprun it writes a scenario: a training of the layout in small, or its attention at full size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/transformer/memory.h"
#include "shared/transformer/model.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/workload.h"
#include "sim/cost/frameworks/framework.h"

namespace cp::sim {

struct EmitContext {
  std::string model;  // as the user named it: a preset, or the path of a config.json
  int nodes = 1, gpus_per_node = 8;
  bool fp8_products = false;  // linear layers multiply in FP8; else in the workload's dtype
  // What was asked for and is not in `workload`, one sentence each. They become comments of the text.
  std::vector<std::string> unsaid = {};
  // If this is given, the text says how much memory a GPU needs and whether it fits.
  std::optional<MemoryRules> memory = {};
  std::int64_t usable_bytes = 0;  // of one GPU, for everything but the context
  bool nvfp4_products = false;    // products that would be in FP8 are in 4 bits
  bool fp8_cache = false;         // keys and values are kept in 8 bits, whatever the workload says
  int max_ctas = 0;  // of NCCL's collectives, as the software was measured with (SoftwareProfile::max_ctas)
  // What is predicted for the layout as it was planned: "15.5 ms between tokens (13.9 ms to 17.6 ms), 12.1 s
  // to the first". It becomes a comment, too, if the framework runs the whole model.
  std::string predicted = {};
};

struct Emitted {
  std::string text;
  // One sentence for each thing that the layout has and the framework cannot express, with what the framework
  // does instead, and for each thing that a person must add. They are comments of the text, too.
  std::vector<std::string> cannot;
  // What a GPU needs, for everything but the context, if the text is run as it is. That may be more than the
  // layout needs, because choices may have been lost. Absent without EmitContext::memory, and if what is run
  // is not a legal layout.
  std::optional<std::int64_t> needed_bytes;
  bool fits = true;
};

// Throws InvalidInput if the framework does not support the phase (require_phase()), if refuse() refuses the
// layout, or if the context has another number of GPUs than the layout.
Emitted emit(Framework framework, const Transformer& model, const Workload& workload,
             const ParallelLayout& layout, const EmitContext& context);

}  // namespace cp::sim
