// Program: the steps of one plan as the timeline replays them. Every iteration of every Repeat is a node of
// its own, which knows what it waits for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim {

// One execution of a step, by its number in issue order.
using NodeId = std::int32_t;

// The plan must outlive this. Throws InvalidInput when the plan has more executions than 2^27.
class Program {
 public:
  explicit Program(const Plan& plan);

  NodeId size() const { return static_cast<NodeId>(waits_for_.size()); }
  std::int64_t num_steps() const { return static_cast<std::int64_t>(steps_.size()); }
  const Plan& plan() const { return *plan_; }
  const Step& step(NodeId node) const { return *steps_[static_cast<std::size_t>(step_id(node))].step; }
  const StepRef& ref(StepId step) const { return steps_[static_cast<std::size_t>(step)]; }
  StepId step_id(NodeId node) const { return ids_[static_cast<std::size_t>(node)]; }
  std::int64_t iteration(NodeId node) const;

  // How many nodes must end before this one begins: the one before it on its stream, and those of its edges.
  std::int32_t waits_for(NodeId node) const { return waits_for_[static_cast<std::size_t>(node)]; }
  std::span<const NodeId> followers(NodeId node) const {
    const auto at = static_cast<std::size_t>(node);
    return {followers_.data() + first_follower_[at], followers_.data() + first_follower_[at + 1]};
  }

 private:
  struct Place {  // of a step's executions: iteration i is node first + i * body
    NodeId first = 0, body = 1;
    std::int64_t count = 1;
    std::int32_t segment = 0;
  };

  void place_steps();
  void link_nodes();

  const Plan* plan_;
  std::vector<StepRef> steps_;
  std::vector<Place> places_;  // by step
  std::vector<StepId> ids_;    // by node
  std::vector<std::int32_t> waits_for_;
  std::vector<std::int64_t> first_follower_;
  std::vector<NodeId> followers_;
};

}  // namespace cp::sim
