// A layout, handed over: the flags or configuration of a framework that runs the model so, or a scenario of
// its attention.
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
  bool fp8_products = false;  // of linear layers; else in the workload's dtype
  // What was asked for and is not in the workload; becomes comments, too.
  std::vector<std::string> unsaid = {};
  // Where they are given the text says how much memory a GPU needs, and whether it fits.
  std::optional<MemoryRules> memory = {};
  std::int64_t usable_bytes = 0;  // of a GPU, for all but the context
  bool nvfp4_products = false;    // of the FP8 ones: in 4 bits
  bool fp8_cache = false;         // keys and values are kept in 8 bits, whatever the workload says
  // What is predicted of the layout as it was planned: "15.5 ms between tokens (13.9 ms to 17.6 ms), 12.1 s
  // to the first". A comment, too, where the framework runs the whole model.
  std::string predicted = {};
};

struct Emitted {
  std::string text;
  // What the layout has and the text does not say, because the framework has no word for it, with what it
  // does instead, and what a person has to add: one sentence each. They stand in the text as comments, too.
  std::vector<std::string> cannot;
  // Of a GPU, for all but the context, when what the text says is run: a choice that is lost may need more
  // than the layout does. None without a context's memory, and where what is run is no legal layout.
  std::optional<std::int64_t> needed_bytes;
  bool fits = true;
};

// Throws InvalidInput as require_phase() does, for a layout that refuse() refuses, and for a context whose
// GPUs are not as many as the layout's.
Emitted emit(Framework framework, const Transformer& model, const Workload& workload,
             const ParallelLayout& layout, const EmitContext& context);

}  // namespace cp::sim
