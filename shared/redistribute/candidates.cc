#include "shared/redistribute/candidates.h"

#include <algorithm>
#include <array>
#include <span>

#include "shared/base/index.h"

namespace cp::detail {
namespace {

bool has(AxisMask mask, std::int8_t axis) { return (mask >> axis & 1U) != 0; }

AxisMask mask_of(const AxisList& axes) {
  AxisMask mask = 0;
  for (const std::int8_t axis : axes) mask |= 1U << axis;
  return mask;
}

using Lists = std::array<ShardList, kMaxDims>;  // by dimension

class Candidates {
 public:
  Candidates(StateSpace& space, const State& state, Breadth breadth, std::vector<StateMove>& out)
      : space_(space), state_(state), breadth_(breadth), out_(out) {
    AxisMask sharding = 0;
    for (int dim = 0; dim < space.num_dims(); ++dim) {
      lists_[idx(dim)] = space.spec(state, dim).entries;
      for (const ShardEntry& entry : lists_[idx(dim)]) sharding |= 1U << entry.axis;
    }
    for (const std::int8_t axis : space.axes(state.side)) {
      const bool partial = has(state.partial, axis);
      if (partial) reducible_.push_back(axis);
      if (!partial && !has(sharding, axis)) free_.push_back(axis);
    }
    choose_dims();
  }

  void list() {
    slices();
    gathers();
    all_to_alls();
    reductions();
    exchanges();
    to_partials();
  }

  void slices() {
    if (breadth_ == Breadth::towards_target) return spread(MoveKind::slice, free_);
    Lists lists = lists_;
    AxisList axes;
    append_each(free_, lists, 0, 0, axes, [&](const Lists& sliced, const AxisList&) {
      add(MoveKind::slice, {}, sliced, state_.partial);
    });
  }

 private:
  bool same_mesh_as_target() const { return state_.side == space_.target().side; }

  void choose_dims() {
    const bool few = count_layouts(space_, state_.side) <= kTriedLayouts;
    for (int dim = 0; dim < space_.num_dims(); ++dim) {
      if (few || space_.sharded_in_request(dim)) dims_.push_back(dim);
    }
  }

  // Adds the move to the layout with these lists, unless a split cannot be used there.
  void add(MoveKind kind, AxisList axes, const Lists& lists, AxisMask partial) {
    State to = state_;
    to.partial = partial;
    for (int dim = 0; dim < space_.num_dims(); ++dim) {
      if (lists[idx(dim)] == lists_[idx(dim)]) continue;
      const int spec = space_.intern(state_.side, dim, lists[idx(dim)]);
      if (spec < 0) return;
      to.spec[idx(dim)] = spec;
    }
    if (to == state_) return;
    out_.push_back({kind, std::move(axes), state_, to});
  }

  // Calls visit(lists, axes) for every way to append a non-empty subset of `pool` to the lists of the usable
  // dims, each axis in one dim, in any order within a dim. `axes`: what was appended, dim by dim in the order
  // of the lists.
  template <class Visit>
  void append_each(const AxisList& pool, Lists& lists, std::size_t at_dim, AxisMask used, AxisList& axes,
                   const Visit& visit) {
    for (std::size_t d = at_dim; d < dims_.size(); ++d) {
      ShardList& list = lists[idx(dims_[d])];
      for (std::size_t i = 0; i < pool.size(); ++i) {
        if ((used >> i & 1U) != 0) continue;
        for (const std::int8_t split : space_.splits_for(dims_[d])) {
          list.push_back({pool[i], split});
          axes.push_back(pool[i]);
          visit(lists, axes);
          append_each(pool, lists, d, used | 1U << i, axes, visit);
          axes.pop_back();
          list.pop_back();
        }
      }
    }
  }

  // Appends the pool's axes, or some of them, where the target has them next, and all together or one by one
  // to each dim; `kind` is a slice, or reduces them on the way.
  void spread(MoveKind kind, const AxisList& pool) {
    if (pool.empty()) return;
    const AxisMask available = mask_of(pool);
    Lists wanted = lists_;
    AxisList all;
    for (const int dim : dims_) {
      Lists lists = lists_;
      AxisList axes;
      for (const ShardEntry& entry : continuation(dim)) {
        if (!has(available, entry.axis)) break;
        lists[idx(dim)].push_back(entry);
        axes.push_back(entry.axis);
      }
      if (axes.empty()) continue;
      add_spread(kind, axes, lists);
      wanted[idx(dim)] = lists[idx(dim)];
      for (const std::int8_t axis : axes) all.push_back(axis);
    }
    add_spread(kind, all, wanted);
    for (const int dim : dims_) {
      for (const std::int8_t split : space_.splits_for(dim)) {
        Lists lists = lists_;
        for (const std::int8_t axis : pool) lists[idx(dim)].push_back({axis, split});
        add_spread(kind, pool, lists);
        for (const std::int8_t axis : pool) {
          Lists one = lists_;
          one[idx(dim)].push_back({axis, split});
          add_spread(kind, {axis}, one);
        }
      }
    }
  }

  void add_spread(MoveKind kind, const AxisList& axes, const Lists& lists) {
    if (axes.empty()) return;
    if (kind == MoveKind::slice) {
      add(kind, {}, lists, state_.partial);
    } else if (one_reduction(axes)) {
      add(kind, axes, lists, without(axes));
    }
  }

  // What the target's list has behind the dim's, where it begins with that.
  ShardList continuation(int dim) const {
    if (!same_mesh_as_target()) return {};
    const ShardList& list = lists_[idx(dim)];
    const ShardList& target = space_.spec(space_.target(), dim).entries;
    if (list.size() > target.size() || !std::equal(list.begin(), list.end(), target.begin())) return {};
    return ShardList(target.begin() + list.size(), target.end());
  }

  std::size_t common_with_target(int dim) const {
    if (!same_mesh_as_target()) return 0;
    const ShardList& list = lists_[idx(dim)];
    const ShardList& target = space_.spec(space_.target(), dim).entries;
    const std::size_t most = std::min(list.size(), target.size());
    std::size_t common = 0;
    while (common < most && list[common] == target[common]) ++common;
    return common;
  }

  // Every choice of innermost axes, one number for each dim.
  void gathers() {
    if (breadth_ == Breadth::towards_target) return gathers_towards_target();
    Taken taken{};
    while (true) {
      std::size_t dim = 0;
      while (dim < taken.size() && taken[dim] == lists_[dim].size()) taken[dim++] = 0;
      if (dim == taken.size()) return;
      ++taken[dim];
      add_gather(taken);
    }
  }

  using Taken = std::array<std::size_t, kMaxDims>;  // by dim: how many innermost axes
  void add_gather(const Taken& taken) {
    Lists lists = lists_;
    AxisList axes;
    for (std::size_t d = 0; d < lists.size(); ++d) {
      const std::size_t left = lists[d].size() - taken[d];
      for (std::size_t i = left; i < lists[d].size(); ++i) axes.push_back(lists[d][i].axis);
      lists[d].resize_down(left);
    }
    if (!axes.empty()) add(MoveKind::all_gather, axes, lists, state_.partial);
  }

  // All that the target has not, in all dims at once; and any number in one dim.
  void gathers_towards_target() {
    Taken unwanted{}, everything{};
    for (int dim = 0; dim < space_.num_dims(); ++dim) {
      everything[idx(dim)] = lists_[idx(dim)].size();
      unwanted[idx(dim)] = lists_[idx(dim)].size() - common_with_target(dim);
    }
    add_gather(unwanted);
    if (everything != unwanted) add_gather(everything);
    for (int dim = 0; dim < space_.num_dims(); ++dim) {
      for (std::size_t count = 1; count <= lists_[idx(dim)].size(); ++count) {
        Taken taken{};
        taken[idx(dim)] = count;
        if (taken != unwanted && taken != everything) add_gather(taken);
      }
    }
  }

  void all_to_alls() {
    for (std::size_t from = 0; from < idx(space_.num_dims()); ++from) {
      for (std::size_t count = 1; count <= lists_[from].size(); ++count) {
        AxisList moved;
        for (std::size_t i = lists_[from].size() - count; i < lists_[from].size(); ++i) {
          moved.push_back(lists_[from][i].axis);
        }
        for (const int to : dims_) {
          if (idx(to) == from) continue;
          if (breadth_ == Breadth::towards_target) {
            move_towards_target(from, count, to, moved);
            continue;
          }
          std::vector<std::int8_t> order(moved.begin(), moved.end());
          std::sort(order.begin(), order.end());
          do {
            append_moved(from, count, to, order, moved);
          } while (std::next_permutation(order.begin(), order.end()));
        }
      }
    }
  }

  // The axes in the target's order and splits where it has just these next, else as they are.
  void move_towards_target(std::size_t from, std::size_t count, int to, const AxisList& moved) {
    ShardList next = continuation(to);
    if (next.size() >= count) {
      next.resize_down(count);
      AxisList order;
      for (const ShardEntry& entry : next) order.push_back(entry.axis);
      if (mask_of(order) == mask_of(moved)) {
        Lists lists = lists_;
        lists[from].resize_down(lists[from].size() - count);
        for (const ShardEntry& entry : next) lists[idx(to)].push_back(entry);
        add(MoveKind::all_to_all, moved, lists, state_.partial);
        if (!(order == moved)) add(MoveKind::all_to_all, order, lists, state_.partial);
        return;
      }
    }
    Lists lists = lists_;
    lists[from].resize_down(lists[from].size() - count);
    for (const std::int8_t axis : moved) lists[idx(to)].push_back({axis, space_.splits_for(to).front()});
    add(MoveKind::all_to_all, moved, lists, state_.partial);
  }

  // One all-to-all for each combination of splits that the moved axes may have in their new dim.
  void append_moved(std::size_t from, std::size_t count, int to, std::span<const std::int8_t> order,
                    const AxisList& group_axes) {
    const std::vector<std::int8_t>& splits = space_.splits_for(to);
    std::vector<std::size_t> choice(order.size(), 0);
    while (true) {
      Lists lists = lists_;
      lists[from].resize_down(lists[from].size() - count);
      for (std::size_t i = 0; i < order.size(); ++i) lists[idx(to)].push_back({order[i], splits[choice[i]]});
      add(MoveKind::all_to_all, group_axes, lists, state_.partial);
      // The group may also count its ranks as the new dimension does: then that side needs no packing.
      const AxisList new_order(order.begin(), order.end());
      if (!(new_order == group_axes)) add(MoveKind::all_to_all, new_order, lists, state_.partial);
      std::size_t i = 0;
      while (i < choice.size() && ++choice[i] == splits.size()) choice[i++] = 0;
      if (i == choice.size()) return;
    }
  }

  // Axes that stay partial in the target may be reduced too: to_partial makes them partial again, for
  // nothing.
  void reductions() {
    if (reducible_.empty()) return;
    for (const MoveKind kind : {MoveKind::reduce_scatter, MoveKind::reduce_exchange}) {
      if (breadth_ == Breadth::towards_target) {
        const AxisList finished = reduced_in_target();
        spread(kind, finished);
        if (!(finished == reducible_)) spread(kind, reducible_);
        continue;
      }
      Lists lists = lists_;
      AxisList axes;
      append_each(reducible_, lists, 0, 0, axes, [&](const Lists& scattered, const AxisList& used) {
        if (one_reduction(used)) add(kind, used, scattered, without(used));
      });
    }
    all_reductions();
    if (!same_mesh_as_target()) {
      if (one_reduction(reducible_))
        out_.push_back({MoveKind::reduce_exchange, {}, state_, reduced_target()});
      return;
    }
    const AxisList axes = reduced_in_target();
    if (axes.empty() || !one_reduction(axes)) return;
    for (const State& to : straight_targets()) out_.push_back({MoveKind::reduce_exchange, axes, state_, to});
  }

  // The target; where it is partial along axes that the source is not, what becomes it at the end: with these
  // axes replicated, or sharding a dimension.
  std::vector<State> straight_targets() {
    const State& target = space_.target();
    const AxisMask missing = target.partial & ~state_.partial;
    if (missing == 0) return {target};
    if ((missing & ~space_.source().partial) == 0) return {};
    State finished = target;
    finished.partial &= ~missing;
    std::vector<State> targets = {finished};
    for (const int dim : dims_) {
      ShardList list = space_.spec(target, dim).entries;
      bool sums = true;
      for (const std::int8_t axis : space_.axes(state_.side)) {
        if (!has(missing, axis)) continue;
        sums = sums && space_.reduction(state_.side, axis) == ReduceOp::sum;
        list.push_back({axis, space_.splits_for(dim).front()});
      }
      const int spec = sums ? space_.intern(state_.side, dim, list) : -1;
      if (spec < 0) continue;
      targets.push_back(finished);
      targets.back().spec[idx(dim)] = spec;
    }
    return targets;
  }

  AxisList reduced_in_target() const {
    const AxisMask wanted = same_mesh_as_target() ? space_.target().partial : 0U;
    AxisList axes;
    for (const std::int8_t axis : reducible_) {
      if (!has(wanted, axis)) axes.push_back(axis);
    }
    return axes;
  }

  void all_reductions() {
    const AxisMask finished = mask_of(reduced_in_target());
    const auto add_all_reduce = [&](AxisMask subset) {
      AxisList axes;
      for (const std::int8_t axis : reducible_) {
        if (has(subset, axis)) axes.push_back(axis);
      }
      if (!axes.empty() && one_reduction(axes)) add(MoveKind::all_reduce, axes, lists_, without(axes));
    };
    if (breadth_ == Breadth::all) {
      for (AxisMask subset = 1; subset < 1U << reducible_.size(); ++subset) {
        AxisMask axes = 0;
        for (std::size_t i = 0; i < reducible_.size(); ++i) {
          if ((subset >> i & 1U) != 0) axes |= 1U << reducible_[i];
        }
        add_all_reduce(axes);
      }
      return;
    }
    add_all_reduce(mask_of(reducible_));
    if (finished != mask_of(reducible_)) add_all_reduce(finished);
    for (const std::int8_t axis : reducible_) {
      if (reducible_.size() > 1 && finished != 1U << axis) add_all_reduce(1U << axis);
    }
  }

  bool one_reduction(const AxisList& axes) const {
    return std::all_of(axes.begin(), axes.end(), [&](std::int8_t axis) {
      return space_.reduction(state_.side, axis) == space_.reduction(state_.side, axes.front());
    });
  }

  AxisMask without(const AxisList& axes) const { return state_.partial & ~mask_of(axes); }

  void exchanges() {
    if (same_mesh_as_target()) {
      if (breadth_ == Breadth::all) {
        permute(0, 0);
      } else {
        exchange_towards_target();
      }
      if (reduced_in_target().empty()) {
        for (const State& to : straight_targets()) {
          if (to != state_ && to.partial == state_.partial) add_exchange(to);
        }
      }
      return;
    }
    if (state_.partial != 0) return;
    add_exchange(reduced_target());
    cross_with_gathers(reduced_target());
  }

  // What arrives on another mesh holds plain values; to_partial makes the rest of a gradient's target there.
  State reduced_target() const {
    State state = space_.target();
    state.partial = 0;
    return state;
  }

  void add_exchange(const State& to) {
    for (const StateMove& known : out_) {
      if (known.kind == MoveKind::exchange && known.to == to) return;
    }
    AxisList axes;
    if (same_mesh_as_target()) axes = space_.axes(state_.side);
    out_.push_back({MoveKind::exchange, std::move(axes), state_, to});
  }

  // On the way to another mesh: arrive with more of the target's axes sharding than the target has, and
  // gather there.
  void cross_with_gathers(const State& target) {
    std::vector<StateMove> refinements;
    Candidates(space_, target, breadth_, refinements).slices();
    for (const StateMove& move : refinements) add_exchange(move.to);
  }

  // Each dim, and any two of them, as the target has them, where the others' axes allow it.
  void exchange_towards_target() {
    const int num_dims = space_.num_dims();
    for (int first = 0; first < num_dims; ++first) {
      for (int second = first; second < num_dims; ++second) {
        Lists lists = lists_;
        for (const int dim : {first, second}) lists[idx(dim)] = space_.spec(space_.target(), dim).entries;
        const bool as_many_parts = as_many(first, lists) && as_many(second, lists);
        if (as_many_parts && no_axis_twice(lists))
          add(MoveKind::exchange, space_.axes(state_.side), lists, state_.partial);
      }
    }
  }
  bool as_many(int dim, const Lists& lists) const {
    std::int64_t degree = 1;
    for (const ShardEntry& entry : lists[idx(dim)]) degree *= space_.axis_size(state_.side, entry.axis);
    return degree == space_.spec(state_, dim).degree;
  }
  bool no_axis_twice(const Lists& lists) const {
    AxisMask used = state_.partial;
    for (int dim = 0; dim < space_.num_dims(); ++dim) {
      for (const ShardEntry& entry : lists[idx(dim)]) {
        if (has(used, entry.axis)) return false;
        used |= 1U << entry.axis;
      }
    }
    return true;
  }

  // Exchanges to every layout in which each dim has as many parts as now, over the same or as many other free
  // axes.
  void permute(std::size_t at_dim, AxisMask used) {
    if (at_dim == 0) {
      for (ShardList& list : permuted_) list.clear();
    }
    if (at_dim == idx(space_.num_dims())) {
      State to = state_;
      for (int dim = 0; dim < space_.num_dims(); ++dim) {
        const int spec = space_.intern(state_.side, dim, permuted_[idx(dim)]);
        if (spec < 0) return;
        to.spec[idx(dim)] = spec;
      }
      if (to != state_) out_.push_back({MoveKind::exchange, space_.axes(state_.side), state_, to});
      return;
    }
    fill_dim(at_dim, used, space_.spec(state_, static_cast<int>(at_dim)).degree);
  }

  void fill_dim(std::size_t dim, AxisMask used, std::int64_t degree) {
    if (degree == 1) {
      permute(dim + 1, used);
      return;
    }
    for (const std::int8_t axis : space_.axes(state_.side)) {
      const std::int64_t size = space_.axis_size(state_.side, axis);
      if (has(used | state_.partial, axis) || degree % size != 0) continue;
      for (const std::int8_t split : space_.splits_for(static_cast<int>(dim))) {
        permuted_[dim].push_back({axis, split});
        fill_dim(dim, used | 1U << axis, degree / size);
        permuted_[dim].pop_back();
      }
    }
  }

  // Along axes that the target is partial along. They must be free, or innermost, so that dropping them
  // leaves a layout; of a sharded one the other ranks hold zeros, which only sums have. Where sums are
  // reduced, other axes may join them: one all_reduce over both does what a gather and an all_reduce would;
  // and an all_reduce takes less memory than a gather.
  void to_partials() {
    AxisMask wanted = same_mesh_as_target() ? space_.target().partial & ~state_.partial : 0U;
    if (breadth_ == Breadth::towards_target) {
      if (wanted != 0) add_to_partial(wanted);
      for (const std::int8_t axis : space_.axes(state_.side)) {
        if (has(wanted, axis) && wanted != 1U << axis) add_to_partial(1U << axis);
      }
      return;
    }
    if (reduces_sums_alone()) wanted = mask_of(space_.axes(state_.side)) & ~state_.partial;
    for (AxisMask subset = wanted; subset != 0; subset = (subset - 1) & wanted) add_to_partial(subset);
  }

  bool reduces_sums_alone() const {
    for (const State* end : {&space_.source(), &space_.target()}) {
      for (const std::int8_t axis : space_.axes(end->side)) {
        if (has(end->partial, axis) && space_.reduction(end->side, axis) != ReduceOp::sum) return false;
      }
    }
    return true;
  }

  void add_to_partial(AxisMask wanted) {
    Lists lists = lists_;
    for (ShardList& list : lists) {
      while (!list.empty() && has(wanted, list.back().axis)) {
        if (space_.reduction(state_.side, list.back().axis) != ReduceOp::sum) return;
        list.pop_back();
      }
      if (std::any_of(list.begin(), list.end(),
                      [&](const ShardEntry& entry) { return has(wanted, entry.axis); }))
        return;
    }
    add(MoveKind::to_partial, {}, lists, state_.partial | wanted);
  }

  StateSpace& space_;
  const State& state_;
  Breadth breadth_;
  std::vector<StateMove>& out_;
  Lists lists_, permuted_;
  AxisList reducible_, free_;
  std::vector<int> dims_;
};

}  // namespace

double count_layouts(const StateSpace& space, int side) {
  // k of the axes shard, in any order, laid out over the dims in any way, each with any split of its dim.
  // Where something is partial, that is one more thing that an axis may be.
  const auto num_axes = static_cast<double>(space.axes(side).size());
  double choices = 0;  // of dim and split for one axis
  for (int dim = 0; dim < space.num_dims(); ++dim)
    choices += static_cast<double>(space.splits_for(dim).size());
  if ((space.source().partial | space.target().partial) != 0) ++choices;
  double layouts = 0, ways = 1;  // to append k axes one after the other, each behind any other of its dim
  for (double k = 0; k <= num_axes; ++k) {
    layouts += ways;
    ways *= (num_axes - k) * (choices + k) / (k + 1);
  }
  return layouts;
}

void list_candidates(StateSpace& space, const State& state, Breadth breadth, std::vector<StateMove>& out) {
  Candidates(space, state, breadth, out).list();
}

}  // namespace cp::detail
