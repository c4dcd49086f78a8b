// One function for each framework. Internal to sim/emit. To add one: name it in emit.h, write its file, list it in emit.cc.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/emit/emit.h"

namespace cp::sim {

struct EmitRequest {
  const Transformer& model;
  const Workload& workload;
  const ParallelLayout& layout;
  const EmitContext& context;

  bool shards_parameters() const { return layout.sharding_size() > 1; }
  int ring_size() const { return layout.cp / layout.strategy.ulysses_degree; }
};

Emitted emit_megatron(const EmitRequest& request);
Emitted emit_torchtitan(const EmitRequest& request);
Emitted emit_deepspeed(const EmitRequest& request);
Emitted emit_vllm(const EmitRequest& request);
Emitted emit_cprun(const EmitRequest& request);

// "llama-3.1-8b: training of 131072 tokens on 2 nodes of 8 GPUs, tp=8,cp=2": what the text is of.
std::string headline(const EmitRequest& request);

}  // namespace cp::sim
