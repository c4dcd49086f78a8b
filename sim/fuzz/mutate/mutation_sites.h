// The places where plans can be damaged, found in order. For sim/fuzz/mutate/*_sites.cc alone.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan.h"
#include "sim/base/numbers.h"
#include "sim/fuzz/mutate/plan_mutations.h"

namespace cp::sim {

// A step of a plan, or (no step) the plan itself.
struct Spot {
  Plan* plan = nullptr;
  StepId id = -1;
  Step* step = nullptr;

  std::string text() const;  // rank 1, step 4 exchange "rotate"
};

// Does the damage and says what it changed: "peer: 1 -> 2".
using Damage = std::function<std::string(Numbers&)>;

// Counts what is offered and keeps the wanted one, so that looking for places costs no memory for each.
class Sites {
 public:
  Sites(std::vector<Plan>& all, std::int64_t wanted) : plans(all), wanted_(wanted) {}

  template <class Do>
  void offer(const Spot& spot, bool may_change_meaning, Do&& damage) {
    if (count_++ != wanted_) return;
    chosen_ = {spot.text(), may_change_meaning, std::forward<Do>(damage)};
  }

  struct Chosen {
    std::string where;
    bool may_change_meaning = false;
    Damage damage;
  };
  std::int64_t count() const { return count_; }
  const Chosen& chosen() const { return chosen_; }

  // Calls visit(spot) for every step of every plan, Repeats' bodies once.
  template <class Visit>
  void for_each_step(const Visit& visit) {
    for (Plan& plan : plans) {
      StepId id = 0;
      for (Segment& segment : plan.segments) {
        if (Step* step = std::get_if<Step>(&segment)) {
          visit(Spot{&plan, id++, step});
        } else {
          for (Step& body_step : std::get<Repeat>(segment).steps) visit(Spot{&plan, id++, &body_step});
        }
      }
    }
  }
  template <class Visit>
  void for_each_plan(const Visit& visit) {
    for (Plan& plan : plans) visit(Spot{&plan, -1, nullptr});
  }

  std::vector<Plan>& plans;

 private:
  std::int64_t wanted_;
  std::int64_t count_ = 0;
  Chosen chosen_;
};

// What each kind offers; a kind that a function does not know offers nothing.
void step_sites(Sites& sites, MutationKind kind);
void message_sites(Sites& sites, MutationKind kind);
void memory_sites(Sites& sites, MutationKind kind);
void arithmetic_sites(Sites& sites, MutationKind kind);

// ---- looking at steps ----

template <class Op>
Op* operation_of(Step& step) {
  return visit_operation(step.work, [](auto& op) -> Op* {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(op)>, Op>) return &op;
    return nullptr;
  });
}

// A view of a step under its name: "k", "more 1", "sends 0".
struct NamedView {
  std::string_view field;
  std::int32_t number = -1;  // in its list
  View* view = nullptr;
  std::string text() const { return number < 0 ? std::string(field) : str(field, " ", number); }
};
// Those that are present.
template <class Visit>
void for_each_view(Step& step, const Visit& visit) {
  visit_operation(step.work, [&](auto& op) {
    visit_fields(op, [&](std::string_view name, auto& field) {
      using Field = std::remove_cvref_t<decltype(field)>;
      std::int32_t number = 0;
      if constexpr (std::is_same_v<Field, View>) {
        if (!is_absent(field)) visit(NamedView{name, -1, &field});
      } else if constexpr (std::is_same_v<Field, std::vector<View>>) {
        for (View& view : field) visit(NamedView{name, number++, &view});
      } else if constexpr (std::is_same_v<Field, std::vector<Transfer>>) {
        for (Transfer& transfer : field) visit(NamedView{name, number++, &transfer.view});
      }
    });
  });
}
// Whether leaving it out could make a difference: a kernel without an element does nothing.
bool has_work(Step& step);

// Calls visit(name, field) for every field of the type.
template <class T, class Visit>
void for_each_field(Step& step, const Visit& visit) {
  visit_operation(step.work, [&](auto& op) {
    visit_fields(op, [&](std::string_view name, auto& field) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, T>) visit(name, field);
    });
  });
}

// "k[offset 16, 4x1x2x8]"
std::string text(const Plan& plan, const View& view);
std::int32_t group_size(const Spot& spot);  // of a collective
std::int32_t own_index(const Spot& spot);
const Group& group_of(const Spot& spot);

// The members of a group in one collective of theirs, by index in the group: its number in the order of the
// plans' steps, each of a Repeat's body once. Members whose plan is not there, or has fewer, have no step.
struct GroupMeeting {
  std::vector<Spot> members;
  Spot first() const;
};
std::vector<GroupMeeting> meetings(std::vector<Plan>& plans);
// The digests of the counts after what the members of an exchange send was changed.
void count_again(const GroupMeeting& meeting);

// ---- changing plans ----

// First and last uses of the temporaries as their steps say (PlanBuilder's rule).
void refit_uses(Plan& plan);
// Their numbers where steps come and go: those of edges and uses.
void remove_step(Plan& plan, StepId id);
void double_step(Plan& plan, StepId id);
// Both in one segment, or both outside of Repeats. Edges name the same steps as before.
void swap_steps(Plan& plan, StepId a, StepId b);
Step& step_at(Plan& plan, StepId id);

}  // namespace cp::sim
