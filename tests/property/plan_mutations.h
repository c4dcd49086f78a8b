// Random damage to a correct set of plans, one place at a time: what the checker, the fabric or a comparison of results has
// to notice. Works on any set of plans.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan.h"

namespace cp::testing {

enum class MutationKind : std::uint8_t {
  drop_step,
  drop_edge,
  swap_peers,
  shift_offset,
  change_count,
  change_reduction,
  change_group,
  change_dtype,
  change_stream,
};
inline constexpr std::pair<MutationKind, std::string_view> kMutationKinds[] = {
    {MutationKind::drop_step, "drop a step"},         {MutationKind::drop_edge, "drop an edge"},
    {MutationKind::swap_peers, "swap peers"},         {MutationKind::shift_offset, "shift an offset"},
    {MutationKind::change_count, "change a count"},   {MutationKind::change_reduction, "change a reduction"},
    {MutationKind::change_group, "change a group"},   {MutationKind::change_dtype, "change a dtype"},
    {MutationKind::change_stream, "change a stream"},
};

struct Mutation {
  MutationKind kind{};
  std::string text;  // what was changed where
  // The result may be another legal program: consistent in itself, but computing something else (a step that reads the
  // neighbouring element, sums instead of maxima, sends as many elements to another peer). No rule about plans can object;
  // only who knows the right result can.
  bool may_change_meaning = false;
};

// Damages one random place of the plans; nothing when they have no place for this kind.
std::optional<Mutation> mutate(std::vector<Plan>& plans, MutationKind kind, std::mt19937_64& random);

namespace mutation_detail {

struct Site {
  std::string text;
  bool may_change_meaning = false;
  std::function<void()> damage;
};

class Sites {
 public:
  Sites(std::vector<Plan>& plans, std::mt19937_64& random) : plans_(plans), random_(random) {}

  std::vector<Site> find(MutationKind kind) {
    for (Plan& plan : plans_) {
      plan_ = &plan;
      if (kind == MutationKind::change_dtype) change_dtypes();
      if (kind == MutationKind::shift_offset) move_buffers();
      if (kind == MutationKind::change_count) change_repeats();
      if (kind == MutationKind::change_group) change_group_ranks();
      for (const StepRef& ref : steps_of(plan)) {
        id_ = ref.id;
        step_ = const_cast<Step*>(ref.step);
        in_step(kind);
      }
    }
    return std::move(sites_);
  }

 private:
  std::size_t pick(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  void add(std::string what, bool may_change_meaning, std::function<void()> damage) {
    sites_.push_back({str("rank ", plan_->self, ": ", what), may_change_meaning, std::move(damage)});
  }
  void add_in_step(std::string_view what, bool may_change_meaning, std::function<void()> damage) {
    add(str("step ", id_, " ", operation_name(step_->work), ": ", what), may_change_meaning,
        std::move(damage));
  }

  void in_step(MutationKind kind) {
    switch (kind) {
      case MutationKind::drop_step:
        return drop_step();
      case MutationKind::drop_edge:
        return drop_edges();
      case MutationKind::swap_peers:
        return swap_peers();
      case MutationKind::shift_offset:
        return shift_views();
      case MutationKind::change_count:
        return change_shapes();
      case MutationKind::change_reduction:
        return change_reduction();
      case MutationKind::change_group:
        return change_group();
      case MutationKind::change_stream:
        return change_stream();
      case MutationKind::change_dtype:
        return;
    }
  }

  // Calls f(name, view) for every view of the step, transfers included.
  template <class F>
  void for_each_view(F&& f) {
    visit_operation(step_->work, [&](auto& op) {
      visit_fields(op, [&](std::string_view name, auto& field) {
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (std::is_same_v<Field, View>) {
          if (!is_absent(field)) f(std::string(name), field);
        } else if constexpr (std::is_same_v<Field, std::vector<View>>) {
          for (std::size_t i = 0; i < field.size(); ++i) f(str(name, " ", i), field[i]);
        } else if constexpr (std::is_same_v<Field, std::vector<Transfer>>) {
          for (std::size_t i = 0; i < field.size(); ++i) f(str(name, " ", i), field[i].view);
        }
      });
    });
  }
  // Calls f(field) for every field of type T of the step.
  template <class T, class F>
  void for_each_field(F&& f) {
    visit_operation(step_->work, [&](auto& op) {
      visit_fields(op, [&](std::string_view, auto& field) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, T>) f(field);
      });
    });
  }

  // Edges and uses keep meaning the same steps as before.
  void drop_step() {
    add_in_step("dropped", !is_collective(*step_), [plan = plan_, id = id_] {
      StepId next = 0;
      for (Segment& segment : plan->segments) {
        if (Repeat* repeat = std::get_if<Repeat>(&segment)) {
          const auto size = static_cast<StepId>(repeat->steps.size());
          if (next <= id && id < next + size) repeat->steps.erase(repeat->steps.begin() + (id - next));
          next += size;
        } else if (next++ == id) {
          segment = Repeat{1, {}};
        }
      }
      std::erase_if(plan->segments, [](const Segment& segment) {
        const Repeat* repeat = std::get_if<Repeat>(&segment);
        return repeat != nullptr && repeat->steps.empty();
      });
      const auto renumber = [id](StepId& step) { step -= step > id ? 1 : 0; };
      for (const StepRef& ref : steps_of(*plan)) {
        std::vector<Edge>& after = const_cast<Step*>(ref.step)->after;
        std::erase_if(after, [id](const Edge& edge) { return edge.step == id; });
        for (Edge& edge : after) renumber(edge.step);
      }
      for (Buffer& buffer : plan->buffers) renumber(buffer.first_use), renumber(buffer.last_use);
    });
  }

  void drop_edges() {
    for (std::size_t i = 0; i < step_->after.size(); ++i) {
      add_in_step(str("edge to step ", step_->after[i].step, " dropped"), false, [step = step_, i] {
        step->after.erase(step->after.begin() + static_cast<std::ptrdiff_t>(i));
      });
    }
  }

  void swap_peers() {
    for_each_field<std::vector<Transfer>>([&](std::vector<Transfer>& transfers) {
      for (std::size_t i = 0; i < transfers.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          if (transfers[i].peer == transfers[j].peer) continue;
          add_in_step(str("transfers ", j, " and ", i, " swap peers"), true,
                      [&transfers, i, j] { std::swap(transfers[i].peer, transfers[j].peer); });
        }
        const auto members = static_cast<std::int32_t>(group_size());
        const auto peer = static_cast<std::int32_t>(pick(static_cast<std::size_t>(members)));
        if (peer == transfers[i].peer) continue;
        add_in_step(str("transfer ", i, " with peer ", peer), true,
                    [&transfers, i, peer] { transfers[i].peer = peer; });
      }
    });
    for_each_field<std::int32_t>([&](std::int32_t& root) { swap_root(root); });
  }
  std::size_t group_size() const {
    return plan_->groups[static_cast<std::size_t>(group_of(std::get<Collective>(step_->work)))].ranks.size();
  }
  // A Broadcast's group is of the same type as its root.
  void swap_root(std::int32_t& field) {
    Broadcast* broadcast = nullptr;
    if (Collective* collective = std::get_if<Collective>(&step_->work))
      broadcast = std::get_if<Broadcast>(collective);
    if (broadcast == nullptr || &field != &broadcast->root) return;
    const auto root = static_cast<std::int32_t>(pick(group_size()));
    if (root != field) add_in_step(str("root ", root), false, [&field, root] { field = root; });
  }

  void shift_views() {
    for_each_view([&](const std::string& name, View& view) {
      const std::int64_t by = static_cast<std::int64_t>(pick(3)) + 1;
      add_in_step(str(name, " shifted by ", by), true, [&view, by] { view.offset += by; });
      add_in_step(str(name, " shifted by -", by), true, [&view, by] { view.offset -= by; });
      if (view.advance.stride != 0) {
        add_in_step(str(name, " in another phase"), true, [&view] { ++view.advance.phase; });
      }
    });
  }
  void move_buffers() {
    for (Buffer& buffer : plan_->buffers) {
      if (buffer.kind != BufferKind::temporary) continue;
      const std::int64_t by = (static_cast<std::int64_t>(pick(5)) - 2) * size_bytes(buffer.dtype);
      if (by != 0)
        add(str(buffer.name, " moved by ", by, " bytes"), false,
            [&buffer, by] { buffer.offset_bytes += by; });
    }
  }

  void change_shapes() {
    for_each_view([&](const std::string& name, View& view) {
      for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
        const std::int64_t by = pick(2) == 0 ? 1 : -1;
        add_in_step(str(name, " dimension ", dim, " changed by ", by), !is_collective(*step_),
                    [&view, dim, by] { view.shape[dim] += by; });
      }
    });
    for_each_field<Digest>(
        [&](Digest& counts) { add_in_step("another counts digest", false, [&counts] { counts.low ^= 1; }); });
  }
  void change_repeats() {
    for (Segment& segment : plan_->segments) {
      Repeat* repeat = std::get_if<Repeat>(&segment);
      if (repeat == nullptr) continue;
      bool has_collective = false;
      for (const Step& step : repeat->steps) has_collective = has_collective || is_collective(step);
      const std::int64_t by = pick(2) == 0 ? 1 : -1;
      add(str("a Repeat of ", repeat->count, " changed by ", by), !has_collective,
          [repeat, by] { repeat->count += by; });
    }
  }

  void change_reduction() {
    for_each_field<ReduceOp>([&](ReduceOp& op) {
      const auto other = static_cast<ReduceOp>((static_cast<std::size_t>(op) + 1 + pick(4)) % 5);
      add_in_step(str(name(other), " instead of ", name(op)), !is_collective(*step_),
                  [&op, other] { op = other; });
    });
  }

  void change_group() {
    Collective* collective = std::get_if<Collective>(&step_->work);
    if (collective == nullptr || plan_->groups.size() < 2) return;
    const auto groups = static_cast<GroupId>(plan_->groups.size());
    const auto group = static_cast<GroupId>(
        (group_of(*collective) + 1 + static_cast<GroupId>(pick(plan_->groups.size() - 1))) % groups);
    add_in_step(str("on group ", group), false,
                [collective, group] { std::visit([group](auto& op) { op.group = group; }, *collective); });
  }
  void change_group_ranks() {
    for (Group& group : plan_->groups) {
      if (group.ranks.size() >= 2) {
        add(str("group ", group.name, " in another order"), false,
            [&group] { std::swap(group.ranks[0], group.ranks[1]); });
      }
      add(str("group ", group.name, " without its last rank"), false, [&group] { group.ranks.pop_back(); });
      add(str("group ", group.name, " renamed"), false, [&group] { group.name += "'"; });
    }
  }

  void change_dtypes() {
    constexpr DType kDTypes[] = {DType::f32, DType::i32, DType::i64};
    for (Buffer& buffer : plan_->buffers) {
      const DType dtype = kDTypes[pick(3)];
      if (dtype == buffer.dtype) continue;
      add(str(buffer.name, " of ", name(dtype)), false, [&buffer, dtype] { buffer.dtype = dtype; });
    }
  }

  void change_stream() {
    const auto streams = static_cast<StreamId>(plan_->streams.size());
    for (StreamId stream = 0; stream <= streams; ++stream) {
      if (stream == step_->stream) continue;
      add_in_step(str("on stream ", stream), false, [plan = plan_, step = step_, stream, streams] {
        if (stream == streams) plan->streams.emplace_back("one more");
        step->stream = stream;
      });
    }
  }

  std::vector<Plan>& plans_;
  std::mt19937_64& random_;
  std::vector<Site> sites_;
  Plan* plan_ = nullptr;
  StepId id_ = -1;
  Step* step_ = nullptr;
};

}  // namespace mutation_detail

inline std::optional<Mutation> mutate(std::vector<Plan>& plans, MutationKind kind, std::mt19937_64& random) {
  std::vector<mutation_detail::Site> sites = mutation_detail::Sites(plans, random).find(kind);
  if (sites.empty()) return std::nullopt;
  const mutation_detail::Site& site = sites[static_cast<std::size_t>(random() % sites.size())];
  site.damage();
  return Mutation{kind, site.text, site.may_change_meaning};
}

}  // namespace cp::testing
