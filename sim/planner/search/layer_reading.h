// LayerReading: what one layer takes at least, or an end of the layers, read from its plan
// (shared/transformer/layer_plan.h). Nothing is told of the model here: what a writer writes is counted, with
// the order in which its steps have to run.
//
// Each kernel takes what it takes alone on the GPU, and each transfer what it takes alone on its links: in a
// step nothing is faster. A layer begins when the last kernel of the piece before it has ended and what that
// hands on is there, and ends with both of its own. Kernels of all layers share one stream, and begin with
// what the piece before has handed on. So the longest way through the layer's steps, over the order on each
// stream and the edges between them, is a bound, and those of layers that follow one another add up. Whatever
// else a step does meanwhile, and what it knows and a layer alone does not, only adds steps and edges.
//
// The mixer's steps themselves stand for one call that takes no time: which cp ranks share it is no business
// of the rest of the layer, and what it takes is another reading (attention_times.h) or, of all layouts of a
// family, a formula (attention_bound.cc). A way says through which calls it goes.
#pragma once

#include <functional>
#include <optional>

#include "shared/plan/plan.h"
#include "shared/transformer/layer_plan.h"
#include "sim/cost/timeline/kernel_cost.h"

namespace cp::sim {

// What steps that wait for one another take, and which calls of the mixer are among them.
struct Way {
  double ns = 0;
  int forward_calls = 0, backward_calls = 0;

  double at(double forward_ns, double backward_ns) const {
    return ns + forward_calls * forward_ns + backward_calls * backward_ns;
  }
};

// Of one pass of a layer. Ways through the mixer are preferred to longer ones beside it: what it takes is not
// known here. All times are in ns.
struct LayerReading {
  Way whole;             // from the layer's begin to its end
  double around_ns = 0;  // the same if the mixer took no time; not below whole.ns
  // As `whole`, with nothing for products that give gradients of weights: what runs beside the mixer's
  // transfers may be among these.
  Way chain;
  double moved_ns = 0;  // of `whole`, what it takes more than if transfers took no time

  // Ways that begin or end in the middle. What the layer lacks is none, as gradients forward are.
  using MaybeWay = std::optional<Way>;
  MaybeWay from_weights, from_experts;             // from the first steps that read them to the end
  MaybeWay to_weights, to_experts;                 // from the begin to the last step that reads them
  MaybeWay within_weights, within_experts;         // from the former to the latter
  MaybeWay from_gradients, from_expert_gradients;  // from the first steps that write them to the end

  // How many kernels one call of the mixer launches, on one GPU: what context parallelism does to it adds
  // kernels to these.
  double forward_launches = 0, backward_launches = 0;
};

// How long a transfer of the plan takes alone; 0 of one that nothing is claimed of.
using TransferTime = std::function<double(const Collective&, const Plan&)>;
LayerReading read_layer(const LayerPlan& layer, const KernelCost& kernels, const TransferTime& transfer_ns);

}  // namespace cp::sim
