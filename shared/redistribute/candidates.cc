#include "shared/redistribute/candidates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

namespace cp::detail {
namespace {

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

// Layouts over dims that neither source nor target shard are considered while the space stays small: detours
// through them can only pay under tight memory bounds.
constexpr double kLargeSpace = 20000;

using Lists = std::array<ShardList, kMaxDims>;  // by dimension

class Candidates {
 public:
  Candidates(LayoutSpace& space, const State& state, const RedistributeOptions& options,
             std::vector<StateMove>& out)
      : space_(space), state_(state), options_(options), out_(out) {
    for (int dim = 0; dim < space.num_dims(); ++dim) lists_[idx(dim)] = space.spec(state, dim).entries;
    for (const std::int8_t axis : space.axes(state.side)) {
      const bool partial = (state.partial >> axis & 1) != 0;
      const bool sharded = std::any_of(lists_.begin(), lists_.end(), [&](const ShardList& list) {
        return std::any_of(list.begin(), list.end(),
                           [&](const ShardEntry& entry) { return entry.axis == axis; });
      });
      if (partial && (!same_mesh_as_target() || (space.target().partial >> axis & 1) == 0))
        reducible_.push_back(axis);
      if (!partial && !sharded) free_.push_back(axis);
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

 private:
  bool same_mesh_as_target() const { return state_.side == space_.target().side; }

  void choose_dims() {
    const auto num_axes = static_cast<double>(space_.axes(state_.side).size());
    const double layouts =
        std::tgamma(num_axes + 1) * std::pow(2.0, num_axes) * std::pow(space_.num_dims(), num_axes);
    for (int dim = 0; dim < space_.num_dims(); ++dim) {
      if (layouts <= kLargeSpace || space_.sharded_in_request(dim)) dims_.push_back(dim);
    }
  }

  // Adds the move to the layout with these lists, unless a split cannot be used there.
  void add(MoveKind kind, AxisList axes, const Lists& lists, unsigned partial) {
    State to = state_;
    to.partial = static_cast<std::uint16_t>(partial);
    for (int dim = 0; dim < space_.num_dims(); ++dim) {
      if (lists[idx(dim)] == lists_[idx(dim)]) continue;
      const int spec = space_.intern(state_.side, dim, lists[idx(dim)]);
      if (spec < 0) return;
      to.spec[idx(dim)] = static_cast<std::int16_t>(spec);
    }
    if (to == state_) return;
    out_.push_back({kind, std::move(axes), state_, to});
  }

  // Calls visit(lists, axes) for every way to append a non-empty subset of `pool` to the lists of the usable
  // dims, each axis in one dim, in any order within a dim. `axes`: what was appended, dim by dim in the order
  // of the lists.
  template <class Visit>
  void append_each(const AxisList& pool, Lists& lists, std::size_t at_dim, unsigned used, AxisList& axes,
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

  void slices() {
    Lists lists = lists_;
    AxisList axes;
    append_each(free_, lists, 0, 0, axes, [&](const Lists& sliced, const AxisList&) {
      add(MoveKind::slice, {}, sliced, state_.partial);
    });
  }

  // Every choice of innermost axes, one number for each dim.
  void gathers() {
    std::array<std::size_t, kMaxDims> taken{};
    while (true) {
      std::size_t dim = 0;
      while (dim < taken.size() && taken[dim] == lists_[dim].size()) taken[dim++] = 0;
      if (dim == taken.size()) return;
      ++taken[dim];
      Lists lists = lists_;
      AxisList axes;
      for (std::size_t d = 0; d < lists.size(); ++d) {
        const std::size_t left = lists[d].size() - taken[d];
        for (std::size_t i = left; i < lists[d].size(); ++i) axes.push_back(lists[d][i].axis);
        lists[d].resize_down(left);
      }
      add(MoveKind::all_gather, axes, lists, state_.partial);
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
          std::vector<std::int8_t> order(moved.begin(), moved.end());
          std::sort(order.begin(), order.end());
          do {
            append_moved(from, count, to, order, moved);
          } while (std::next_permutation(order.begin(), order.end()));
        }
      }
    }
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

  void reductions() {
    if (reducible_.empty()) return;
    for (const MoveKind kind : {MoveKind::reduce_scatter, MoveKind::reduce_exchange}) {
      Lists lists = lists_;
      AxisList axes;
      append_each(reducible_, lists, 0, 0, axes, [&](const Lists& scattered, const AxisList& used) {
        if (one_reduction(used)) add(kind, used, scattered, without(used));
      });
    }
    for (unsigned subset = 1; subset < 1U << reducible_.size(); ++subset) {
      AxisList axes;
      for (std::size_t i = 0; i < reducible_.size(); ++i) {
        if ((subset >> i & 1U) != 0) axes.push_back(reducible_[i]);
      }
      if (one_reduction(axes)) add(MoveKind::all_reduce, axes, lists_, without(axes));
    }
    const State& target = space_.target();
    const bool target_reduces_all = !same_mesh_as_target() || (target.partial & ~state_.partial) == 0;
    if (target_reduces_all && one_reduction(reducible_)) {
      out_.push_back({MoveKind::reduce_exchange, same_mesh_as_target() ? reducible_ : AxisList{}, state_,
                      same_mesh_as_target() ? target : reduced_target()});
    }
  }

  bool one_reduction(const AxisList& axes) const {
    return std::all_of(axes.begin(), axes.end(), [&](std::int8_t axis) {
      return space_.reduction(state_.side, axis) == space_.reduction(state_.side, axes.front());
    });
  }

  unsigned without(const AxisList& axes) const {
    unsigned mask = state_.partial;
    for (const std::int8_t axis : axes) mask &= ~(1U << axis);
    return mask;
  }

  void exchanges() {
    const State& target = space_.target();
    if (same_mesh_as_target()) {
      permute(0, 0);
      if (state_.partial == target.partial && state_ != target) add_exchange(target);
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
    RedistributeOptions local = options_;
    local.allow_to_partial = false;
    Candidates(space_, target, local, refinements).slices();
    for (const StateMove& move : refinements) add_exchange(move.to);
  }

  // Exchanges to every layout in which each dim has as many parts as now, over the same or as many other free
  // axes.
  void permute(std::size_t at_dim, unsigned used) {
    if (at_dim == 0) {
      for (ShardList& list : permuted_) list.clear();
    }
    if (at_dim == idx(space_.num_dims())) {
      State to = state_;
      for (int dim = 0; dim < space_.num_dims(); ++dim) {
        const int spec = space_.intern(state_.side, dim, permuted_[idx(dim)]);
        if (spec < 0) return;
        to.spec[idx(dim)] = static_cast<std::int16_t>(spec);
      }
      if (to != state_) out_.push_back({MoveKind::exchange, space_.axes(state_.side), state_, to});
      return;
    }
    fill_dim(at_dim, used, space_.spec(state_, static_cast<int>(at_dim)).degree);
  }

  void fill_dim(std::size_t dim, unsigned used, std::int64_t degree) {
    if (degree == 1) {
      permute(dim + 1, used);
      return;
    }
    for (const std::int8_t axis : space_.axes(state_.side)) {
      const std::int64_t size = space_.axis_size(state_.side, axis);
      if ((used >> axis & 1U) != 0 || degree % size != 0 || (state_.partial >> axis & 1) != 0) continue;
      for (const std::int8_t split : space_.splits_for(static_cast<int>(dim))) {
        permuted_[dim].push_back({axis, split});
        fill_dim(dim, used | 1U << axis, degree / size);
        permuted_[dim].pop_back();
      }
    }
  }

  void to_partials() {
    if (!options_.allow_to_partial || !same_mesh_as_target()) return;
    const State& target = space_.target();
    const unsigned wanted = target.partial & ~static_cast<unsigned>(state_.partial);
    if (wanted == 0) return;
    // All at once: the wanted axes must be free or innermost, so that dropping them leaves a layout.
    Lists lists = lists_;
    for (ShardList& list : lists) {
      while (!list.empty() && (wanted >> list.back().axis & 1U) != 0) list.pop_back();
      if (std::any_of(list.begin(), list.end(),
                      [&](const ShardEntry& entry) { return (wanted >> entry.axis & 1U) != 0; }))
        return;
    }
    add(MoveKind::to_partial, {}, lists, state_.partial | wanted);
  }

  LayoutSpace& space_;
  const State& state_;
  const RedistributeOptions& options_;
  std::vector<StateMove>& out_;
  Lists lists_, permuted_;
  AxisList reducible_, free_;
  std::vector<int> dims_;
};

}  // namespace

void list_candidates(LayoutSpace& space, const State& state, const RedistributeOptions& options,
                     std::vector<StateMove>& out) {
  Candidates(space, state, options, out).list();
}

}  // namespace cp::detail
