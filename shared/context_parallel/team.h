// Team: the communicators of some ranks. What copy engines move goes through one of its own, since which of
// the two moves data is fixed when a communicator is made. Internal to shared/context_parallel.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shared/plan/builder.h"

namespace cp::detail {

class Team {
 public:
  Team() = default;
  // Without copy engines there is one group, which is in the plan even if nothing goes through it.
  Team(PlanBuilder& builder, std::string name, std::vector<Rank> ranks, bool copy_engine)
      : builder_(&builder), name_(std::move(name)), ranks_(std::move(ranks)), copy_engine_(copy_engine) {
    if (!copy_engine_) static_cast<void>(sums());
  }

  // For what only moves, and for what is added up or has unequal blocks.
  GroupId moves() const { return copy_engine_ ? builder_->group(name_ + "_ce", ranks_, true) : sums(); }
  GroupId sums() const { return builder_->group(name_, ranks_); }
  bool copy_engine() const { return copy_engine_; }

 private:
  PlanBuilder* builder_ = nullptr;
  std::string name_;
  std::vector<Rank> ranks_;
  bool copy_engine_ = false;
};

}  // namespace cp::detail
