// One function for each framework. Internal to sim/planner/emit. To add a framework: name it in
// sim/cost/frameworks/framework.h and write its rules there, write its emitter in a file of this folder, and
// list it in emit.cc.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/planner/emit/emit.h"

namespace cp::sim {

struct EmitRequest {
  const Transformer& model;
  const Workload& workload;
  const ParallelLayout& layout;
  const EmitContext& context;

  bool shards_parameters() const { return layout.sharding_size() > 1; }
  int ring_size() const { return layout.cp / layout.strategy.ulysses_degree; }
};

// The text of one framework, without comments, and notes on what must be added by hand. What the framework
// cannot express is not in the notes: the rules of sim/cost/frameworks say that.
struct EmittedBody {
  std::string text;
  std::vector<std::string> notes;
};
EmittedBody emit_megatron(const EmitRequest& request);
EmittedBody emit_torchtitan(const EmitRequest& request);
EmittedBody emit_deepspeed(const EmitRequest& request);
EmittedBody emit_vllm(const EmitRequest& request);
EmittedBody emit_cprun(const EmitRequest& request);
EmittedBody emit_attention(const EmitRequest& request);

}  // namespace cp::sim
