#include "sim/planner/search/layer_reading.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <variant>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/operations.h"
#include "sim/cost/timeline/grouped_products.h"
#include "sim/cost/timeline/program.h"

namespace cp::sim {
namespace {

struct StepCost {
  double ns = 0;
  int forward_calls = 0, backward_calls = 0;
  bool moves = false, makes_weight_gradient = false;
  bool reads_weights = false, reads_experts = false, writes_gradients = false,
       writes_expert_gradients = false, hands_on = false;
  const std::vector<Edge>* after = nullptr;
};

bool is_longer(const Way& a, const Way& b) {
  return std::tuple(a.forward_calls + a.backward_calls, a.ns) >
         std::tuple(b.forward_calls + b.backward_calls, b.ns);
}

class Reader {
 public:
  Reader(const LayerPlan& layer, const KernelCost& kernels, const TransferTime& transfer_ns)
      : layer_(layer), program_(layer.plan), steps_(idx(program_.num_steps())) {
    const GroupedProducts grouped(layer.plan);
    for (StepId id = 0; id < static_cast<StepId>(steps_.size()); ++id) {
      const Step& step = *program_.ref(id).step;
      StepCost& cost = steps_[idx(id)];
      for_each_access(layer.plan, step.work, [&](const Access& access) { note(access, cost); });
      if (const auto* kernel = std::get_if<Kernel>(&step.work)) {
        cost.ns = kernels.ns(id, *kernel, layer.plan, grouped);
        cost.makes_weight_gradient = std::holds_alternative<MatMul>(*kernel) &&
                                     (cost.writes_gradients || cost.writes_expert_gradients);
      } else {
        cost.ns = transfer_ns(std::get<Collective>(step.work), layer.plan), cost.moves = true;
      }
    }
    for (const MixerSteps& mixer : layer.mixers) stand_for_a_call(mixer);
    for (NodeId node = 0; node < program_.size(); ++node) {
      const StepCost& cost = cost_of(node);
      if (!cost.moves) last_kernel_ = node;
      if (cost.hands_on) hands_on_ = node;
    }
  }

  LayerReading read() const {
    LayerReading reading;
    const auto any = [](const StepCost&) { return true; };
    const auto weights = [](const StepCost& step) { return step.reads_weights; };
    const auto experts = [](const StepCost& step) { return step.reads_experts; };
    const Ways whole = ways(any), kernels = ways(any, {.of_moves = 0}),
               chain = ways(any, {.of_weight_gradients = 0}), around = ways(any, {.of_calls = 0});
    reading.whole = *end(whole), reading.chain = *end(chain);
    reading.around_ns = end(around)->ns;
    reading.moved_ns = std::max(0.0, reading.whole.ns - end(kernels)->ns);
    const Ways of_weights = ways(weights), of_experts = ways(experts);
    reading.from_weights = end(of_weights), reading.from_experts = end(of_experts);
    reading.to_weights = last(whole, weights), reading.to_experts = last(whole, experts);
    reading.within_weights = last(of_weights, weights), reading.within_experts = last(of_experts, experts);
    reading.from_gradients = end(ways([](const StepCost& step) { return step.writes_gradients; }));
    reading.from_expert_gradients =
        end(ways([](const StepCost& step) { return step.writes_expert_gradients; }));
    for (const MixerSteps& mixer : layer_.mixers)
      (mixer.backward ? reading.backward_launches : reading.forward_launches) = launches(mixer);
    return reading;
  }

 private:
  // By execution of a step: the longest way from the begin of one that begins it to the end of this one.
  using MaybeWay = LayerReading::MaybeWay;
  using Ways = std::vector<MaybeWay>;
  struct Factors {
    double of_moves = 1, of_weight_gradients = 1;
    int of_calls = 1;
  };

  const StepCost& cost_of(NodeId node) const { return steps_[idx(program_.step_id(node))]; }

  void note(const Access& access, StepCost& cost) const {
    const BufferId buffer = access.view->buffer;
    if (buffer < 0) return;
    cost.reads_weights |= buffer == layer_.weights, cost.reads_experts |= buffer == layer_.experts;
    cost.writes_gradients |= buffer == layer_.d_weights,
        cost.writes_expert_gradients |= buffer == layer_.d_experts;
    cost.hands_on |= access.writes && buffer == layer_.hands_on;
  }

  // The first of its steps has the call, and none of them time.
  void stand_for_a_call(const MixerSteps& mixer) {
    for (StepId step = mixer.begin; step < mixer.end; ++step) steps_[idx(step)].ns = 0;
    if (mixer.begin == mixer.end) return;
    StepCost& first = steps_[idx(mixer.begin)];
    (mixer.backward ? first.backward_calls : first.forward_calls) = 1;
  }

  double launches(const MixerSteps& mixer) const {
    double launches = 0;
    for (StepId step = mixer.begin; step < mixer.end; ++step)
      launches += std::holds_alternative<Kernel>(program_.ref(step).step->work) ? 1 : 0;
    return launches;
  }

  template <class Begins>
  Ways ways(const Begins& begins) const {
    return ways(begins, {});
  }
  template <class Begins>
  Ways ways(const Begins& begins, const Factors& factors) const {
    Ways ways(idx(program_.size()));
    for (NodeId node = 0; node < program_.size(); ++node) {
      const StepCost& cost = cost_of(node);
      MaybeWay& way = ways[idx(node)];  // so far that to its begin
      if (!way && begins(cost)) way = Way{};
      if (!way) continue;
      way->ns += cost.ns * (cost.moves ? factors.of_moves : 1) *
                 (cost.makes_weight_gradient ? factors.of_weight_gradients : 1);
      way->forward_calls += factors.of_calls * cost.forward_calls;
      way->backward_calls += factors.of_calls * cost.backward_calls;
      for (const NodeId next : program_.followers(node)) lengthen(ways[idx(next)], way);
    }
    return ways;
  }

  static void lengthen(MaybeWay& longest, const MaybeWay& way) {
    if (way && (!longest || is_longer(*way, *longest))) longest = way;
  }

  MaybeWay end(const Ways& ways) const {
    MaybeWay end = ways[idx(last_kernel_)];
    if (hands_on_ >= 0) lengthen(end, ways[idx(hands_on_)]);
    return end;
  }
  template <class Ends>
  MaybeWay last(const Ways& ways, const Ends& ends) const {
    MaybeWay last;
    for (NodeId node = 0; node < program_.size(); ++node) {
      if (ends(cost_of(node))) lengthen(last, ways[idx(node)]);
    }
    return last;
  }

  const LayerPlan& layer_;
  const Program program_;
  std::vector<StepCost> steps_;  // by step
  NodeId last_kernel_ = 0, hands_on_ = -1;
};

}  // namespace

LayerReading read_layer(const LayerPlan& layer, const KernelCost& kernels, const TransferTime& transfer_ns) {
  CP_INVARIANT(!layer.plan.segments.empty(), "a layer has steps");
  return Reader(layer, kernels, transfer_ns).read();
}

}  // namespace cp::sim
