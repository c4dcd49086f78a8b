// Finds the places where plans can be damaged, in order. For sim/fuzz/mutate/*_sites.cc only.
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

// A step of a plan. If there is no step, it is the plan itself.
struct Spot {
  Plan* plan = nullptr;
  StepId id = -1;
  Step* step = nullptr;

  std::string text() const;  // rank 1, step 4 exchange "rotate"
};

// Does the damage and returns what it changed, as text: "peer: 1 -> 2".
using Damage = std::function<std::string(Numbers&)>;

// Counts the places that are offered and keeps only the wanted one, the number `wanted` from 0 on. So looking
// for places takes no memory for each. The plans must outlive it.
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

  // Calls visit(spot) for every step of every plan, in issue order. The steps of a Repeat come once.
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

// Each of these offers the places that it knows for the kind. Of a kind that it does not know it offers none.
void step_sites(Sites& sites, MutationKind kind);
void message_sites(Sites& sites, MutationKind kind);
void memory_sites(Sites& sites, MutationKind kind);
void arithmetic_sites(Sites& sites, MutationKind kind);

// ---- looking at steps ----

// The operation of a step if it is an Op, else null.
template <class Op>
Op* operation_of(Step& step) {
  return visit_operation(step.work, [](auto& op) -> Op* {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(op)>, Op>) return &op;
    return nullptr;
  });
}

// A view of a step under its name: "k", "more 1", "sends 0". The number is its place in a list of views, or
// -1 if it is not in a list.
struct NamedView {
  std::string_view field;
  std::int32_t number = -1;
  View* view = nullptr;
  std::string text() const { return number < 0 ? std::string(field) : str(field, " ", number); }
};
// Calls visit(NamedView) for every view of the step that is present.
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
// Whether the result could change if the step is left out. A kernel without an element does nothing.
bool has_work(Step& step);

// Calls visit(name, field) for every field of type T of the step's operation.
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

// For steps that are collectives: the size of the group, the rank's own index in it, and the group.
std::int32_t group_size(const Spot& spot);
std::int32_t own_index(const Spot& spot);
const Group& group_of(const Spot& spot);

// One collective of a group, with the steps of all members, by index in the group. The collectives of a group
// are numbered in the order of the plans' steps, and each in the body of a Repeat counts once. A member whose
// plan is not there, or has fewer collectives, has no step.
struct GroupMeeting {
  std::vector<Spot> members;
  Spot first() const;  // the first member that has a step
};
std::vector<GroupMeeting> meetings(std::vector<Plan>& plans);
// Computes the digests of the counts again, after a change of what the members of an exchange send.
void count_again(const GroupMeeting& meeting);

// ---- changing plans ----

// Makes the declared first and last uses of the temporaries those of the plan's steps. What a Repeat uses is
// declared for all of it, so that buffers of its body must not share bytes.
void refit_uses(Plan& plan);
// Take a step out, or put it in a second time. The numbers of steps in edges and uses are made right.
void remove_step(Plan& plan, StepId id);
void double_step(Plan& plan, StepId id);
// The two steps must be in one segment, or both outside of Repeats. Edges name the same steps as before.
void swap_steps(Plan& plan, StepId a, StepId b);
Step& step_at(Plan& plan, StepId id);

}  // namespace cp::sim
