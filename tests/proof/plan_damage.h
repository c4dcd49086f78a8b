// Changing plans in one place: steps left out or repeated, messages added. None of the plans has a Repeat.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan.h"

namespace cp::testing {

struct Damage {
  std::string place;
  std::vector<std::string> words;  // that the finding must contain
  std::function<void()> apply;     // to the plans that it was listed for
};
inline void showValue(const Damage& damage, std::ostream& out) { out << damage.place; }

// "rank 1, step 12": as findings name a step.
inline std::string at(const Plan& plan, StepId id) { return str("rank ", plan.self, ", step ", id, " "); }

template <class Op>
Op* operation(Step& step) {
  return visit_operation(step.work, [](auto& op) -> Op* {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(op)>, Op>) return &op;
    return nullptr;
  });
}
// Calls visit(plan, id, step, operation) for each step that is an Op.
template <class Op, class Visit>
void for_each(std::vector<Plan>& plans, const Visit& visit) {
  for (Plan& plan : plans) {
    for (std::size_t id = 0; id < plan.segments.size(); ++id) {
      Step& step = std::get<Step>(plan.segments[id]);
      if (Op* op = operation<Op>(step)) visit(plan, static_cast<StepId>(id), step, *op);
    }
  }
}

// Turns the step into one that leaves `data` as it is.
inline void disarm(Step& step, View data) { step.work = Kernel{Scale{std::move(data), 1}}; }

inline void insert_step(Plan& plan, StepId before, Step step) {
  for (Segment& segment : plan.segments) {
    for (Edge& edge : std::get<Step>(segment).after) edge.step += edge.step >= before ? 1 : 0;
  }
  for (Buffer& buffer : plan.buffers) {
    buffer.first_use += buffer.first_use >= before ? 1 : 0;
    buffer.last_use += buffer.last_use >= before - 1 ? 1 : 0;
  }
  plan.segments.insert(plan.segments.begin() + before, std::move(step));
}
inline void repeat_step(Plan& plan, StepId id) {
  Step again = std::get<Step>(plan.segments[static_cast<std::size_t>(id)]);
  again.after.clear();
  insert_step(plan, id + 1, std::move(again));
}

inline View add_temporary(Plan& plan, DType dtype, std::int64_t numel, StepId first_use, StepId last_use) {
  plan.arena_bytes = (plan.arena_bytes + 255) / 256 * 256;
  plan.buffers.push_back({.name = "one more",
                          .kind = BufferKind::temporary,
                          .dtype = dtype,
                          .numel = numel,
                          .offset_bytes = plan.arena_bytes,
                          .first_use = first_use,
                          .last_use = last_use});
  plan.arena_bytes += plan.buffers.back().bytes();
  return flat_view(static_cast<BufferId>(plan.buffers.size() - 1), 0, numel);
}

// The same exchange on all members of its group, by index in it.
struct Meeting {
  std::vector<Plan*> plans;
  std::vector<StepId> ids;

  Exchange& op(std::size_t member) const {
    return *operation<Exchange>(
        std::get<Step>(plans[member]->segments[static_cast<std::size_t>(ids[member])]));
  }
  void count_again() const {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> sums;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      for (const Transfer& send : op(i).sends)
        sums[{static_cast<std::int32_t>(i), send.peer}] += send.view.numel();
    }
    std::vector<Count> counts;
    for (const auto& [pair, numel] : sums) counts.push_back({pair.first, pair.second, numel});
    for (std::size_t i = 0; i < plans.size(); ++i) op(i).counts = counts_digest(counts);
  }
};
inline std::vector<Meeting> meetings(std::vector<Plan>& plans) {
  std::map<std::pair<std::string, std::vector<Rank>>, std::vector<Meeting>> found;
  std::map<std::pair<const Plan*, GroupId>, std::size_t> next;
  for_each<Exchange>(plans, [&](Plan& plan, StepId id, Step&, const Exchange& op) {
    const Group& group = plan.groups[static_cast<std::size_t>(op.group)];
    std::vector<Meeting>& of_group = found[{group.name, group.ranks}];
    const std::size_t number = next[{&plan, op.group}]++;
    of_group.resize(std::max(of_group.size(), number + 1));
    Meeting& meeting = of_group[number];
    meeting.plans.resize(group.ranks.size());
    meeting.ids.resize(group.ranks.size());
    const auto index = static_cast<std::size_t>(index_in_group(plan, op.group));
    meeting.plans[index] = &plan, meeting.ids[index] = id;
  });
  std::vector<Meeting> all;
  for (auto& [group, of_group] : found) all.insert(all.end(), of_group.begin(), of_group.end());
  return all;
}

// Words with the place in them: "$step" is "rank 1, step 12 ", "$rank" is "rank 1".
inline std::vector<std::string> words_at(const Plan& plan, StepId id, std::vector<std::string> words) {
  for (std::string& word : words) {
    if (word == "$step") word = at(plan, id);
    if (word == "$rank") word = str("rank ", plan.self);
  }
  return words;
}

}  // namespace cp::testing
