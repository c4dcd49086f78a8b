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

namespace cp::sim {
namespace {

struct StepCost {
  double ns = 0;
  StreamId stream = 0;
  int forward_calls = 0, backward_calls = 0;
  bool moves = false, makes_weight_gradient = false;
  bool reads_weights = false, reads_experts = false, writes_gradients = false,
       writes_expert_gradients = false;
  const std::vector<Edge>* after = nullptr;
};

bool is_longer(const Way& a, const Way& b) {
  return std::tuple(a.forward_calls + a.backward_calls, a.ns) >
         std::tuple(b.forward_calls + b.backward_calls, b.ns);
}

class Reader {
 public:
  Reader(const LayerPlan& layer, const KernelCost& kernels, const TransferTime& transfer_ns)
      : layer_(layer), steps_(steps_of(layer.plan)), nodes_(steps_.size()) {
    const GroupedProducts grouped(layer.plan);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = *steps_[i].step;
      StepCost& node = nodes_[i];
      node.stream = step.stream, node.after = &step.after;
      for_each_access(layer.plan, step.work, [&](const Access& access) { note(access, node); });
      if (const auto* kernel = std::get_if<Kernel>(&step.work)) {
        node.ns = kernels.ns(static_cast<StepId>(i), *kernel, layer.plan, grouped);
        node.makes_weight_gradient = std::holds_alternative<MatMul>(*kernel) &&
                                     (node.writes_gradients || node.writes_expert_gradients);
        last_kernel_ = i;
      } else {
        node.ns = transfer_ns(std::get<Collective>(step.work), layer.plan), node.moves = true;
      }
    }
    for (const MixerSteps& mixer : layer.mixers) stand_for_a_call(mixer);
  }

  LayerReading read() const {
    LayerReading reading;
    const auto any = [](const StepCost&) { return true; };
    const auto weights = [](const StepCost& node) { return node.reads_weights; };
    const auto experts = [](const StepCost& node) { return node.reads_experts; };
    const Ways whole = ways(any), kernels = ways(any, {.of_moves = 0}),
               chain = ways(any, {.of_weight_gradients = 0}), around = ways(any, {.of_calls = 0});
    reading.whole = *whole[last_kernel_], reading.chain = *chain[last_kernel_];
    reading.around_ns = around[last_kernel_]->ns;
    reading.moved_ns = std::max(0.0, reading.whole.ns - kernels[last_kernel_]->ns);
    const Ways of_weights = ways(weights), of_experts = ways(experts);
    reading.from_weights = of_weights[last_kernel_], reading.from_experts = of_experts[last_kernel_];
    reading.to_weights = last(whole, weights), reading.to_experts = last(whole, experts);
    reading.within_weights = last(of_weights, weights), reading.within_experts = last(of_experts, experts);
    reading.from_gradients = ways([](const StepCost& node) { return node.writes_gradients; })[last_kernel_];
    reading.from_expert_gradients =
        ways([](const StepCost& node) { return node.writes_expert_gradients; })[last_kernel_];
    for (const MixerSteps& mixer : layer_.mixers)
      (mixer.backward ? reading.backward_launches : reading.forward_launches) = launches(mixer);
    return reading;
  }

 private:
  // By step: the longest way from the begin of a step that begins one to the end of this one.
  using Ways = std::vector<std::optional<Way>>;
  struct Factors {
    double of_moves = 1, of_weight_gradients = 1;
    int of_calls = 1;
  };

  void note(const Access& access, StepCost& node) const {
    const BufferId buffer = access.view->buffer;
    if (buffer < 0) return;
    node.reads_weights |= buffer == layer_.weights, node.reads_experts |= buffer == layer_.experts;
    node.writes_gradients |= buffer == layer_.d_weights,
        node.writes_expert_gradients |= buffer == layer_.d_experts;
  }

  // The first of its steps has the call, and none of them time.
  void stand_for_a_call(const MixerSteps& mixer) {
    for (StepId step = mixer.begin; step < mixer.end; ++step) nodes_[idx(step)].ns = 0;
    if (mixer.begin == mixer.end) return;
    StepCost& first = nodes_[idx(mixer.begin)];
    (mixer.backward ? first.backward_calls : first.forward_calls) = 1;
  }

  double launches(const MixerSteps& mixer) const {
    double launches = 0;
    for (StepId step = mixer.begin; step < mixer.end; ++step)
      launches += std::holds_alternative<Kernel>(steps_[idx(step)].step->work) ? 1 : 0;
    return launches;
  }

  template <class Begins>
  Ways ways(const Begins& begins) const {
    return ways(begins, {});
  }
  template <class Begins>
  Ways ways(const Begins& begins, const Factors& factors) const {
    Ways ways(nodes_.size()), of_streams(layer_.plan.streams.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const StepCost& node = nodes_[i];
      std::optional<Way> before;
      const auto behind = [&](const std::optional<Way>& way) {
        if (way && (!before || is_longer(*way, *before))) before = way;
      };
      if (begins(node)) before = Way{};
      behind(of_streams[idx(node.stream)]);
      for (const Edge& edge : *node.after) behind(ways[idx(edge.step)]);
      if (!before) continue;
      before->ns += node.ns * (node.moves ? factors.of_moves : 1) *
                    (node.makes_weight_gradient ? factors.of_weight_gradients : 1);
      before->forward_calls += factors.of_calls * node.forward_calls;
      before->backward_calls += factors.of_calls * node.backward_calls;
      ways[i] = of_streams[idx(node.stream)] = before;
    }
    return ways;
  }

  template <class Ends>
  std::optional<Way> last(const Ways& ways, const Ends& ends) const {
    std::optional<Way> last;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (ends(nodes_[i]) && ways[i] && (!last || is_longer(*ways[i], *last))) last = ways[i];
    }
    return last;
  }

  const LayerPlan& layer_;
  const std::vector<StepRef> steps_;
  std::vector<StepCost> nodes_;
  std::size_t last_kernel_ = 0;
};

}  // namespace

LayerReading read_layer(const LayerPlan& layer, const KernelCost& kernels, const TransferTime& transfer_ns) {
  CP_INVARIANT(!layer.plan.segments.empty(), "a layer has steps");
  return Reader(layer, kernels, transfer_ns).read();
}

}  // namespace cp::sim
