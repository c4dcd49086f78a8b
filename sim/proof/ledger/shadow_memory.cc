#include "sim/proof/ledger/shadow_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/operations.h"

namespace cp::sim {
namespace {

// A view as stretches of consecutive elements: how long they are, and the loops over them.
struct Stretches {
  std::int64_t length = 1;
  std::vector<std::pair<std::int64_t, std::int64_t>> loops;  // size and stride, outermost first
};

Stretches stretches_of(const View& view) {
  Stretches result;
  std::size_t dim = view.shape.size();
  for (; dim > 0; --dim) {
    if (view.shape[dim - 1] == 1) continue;
    if (view.strides[dim - 1] != result.length) break;
    result.length *= view.shape[dim - 1];
  }
  for (std::size_t d = 0; d < dim; ++d) {
    if (view.shape[d] != 1) result.loops.emplace_back(view.shape[d], view.strides[d]);
  }
  return result;
}

// Calls visit(first element) for each stretch, in row-major order.
template <class Visit>
void for_each_stretch(const Stretches& stretches, std::int64_t begin, const Visit& visit) {
  std::vector<std::int64_t> index(stretches.loops.size(), 0);
  for (std::int64_t at = begin;;) {
    visit(at);
    std::size_t d = index.size();
    for (; d > 0; --d) {
      const auto& [size, stride] = stretches.loops[d - 1];
      at += stride;
      if (++index[d - 1] < size) break;
      at -= stride * size;
      index[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

// Finds the granules: sets of buffers that exchange data, and for each set the greatest common divisor of all
// places and lengths that its views name.
class GranuleFinder {
 public:
  GranuleFinder(std::span<const Plan> plans, const std::vector<std::size_t>& first)
      : plans_(plans), first_(first) {
    parent_.resize(first.back());
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
    divisor_.assign(parent_.size(), 0);
    for (std::size_t plan = 0; plan < plans.size(); ++plan) add_plan(plan);
    join_collectives();
  }

  void divide(std::size_t buffer, std::int64_t length) {
    std::int64_t& divisor = divisor_[root(buffer)];
    divisor = std::gcd(divisor, length);
  }
  std::int64_t granule(std::size_t plan, std::size_t buffer) {
    return std::max<std::int64_t>(1, divisor_[root(first_[plan] + buffer)]);
  }

 private:
  std::size_t buffer(std::size_t plan, const View& view) const {
    return first_[plan] + static_cast<std::size_t>(view.buffer);
  }
  std::size_t root(std::size_t buffer) {
    while (parent_[buffer] != buffer) buffer = parent_[buffer] = parent_[parent_[buffer]];
    return buffer;
  }
  void join(std::size_t a, std::size_t b) {
    a = root(a), b = root(b);
    if (a == b) return;
    parent_[b] = a;
    divisor_[a] = std::gcd(divisor_[a], divisor_[b]);
  }

  void add_plan(std::size_t plan) {
    for (std::size_t b = 0; b < plans_[plan].buffers.size(); ++b) {
      divide(first_[plan] + b, plans_[plan].buffers[b].numel);
    }
    for (const StepRef& ref : steps_of(plans_[plan])) {
      // A product's operand may be transposed: then it is the columns that lie together.
      const auto* kernel = std::get_if<Kernel>(&ref.step->work);
      const bool is_product = kernel != nullptr && std::holds_alternative<MatMul>(*kernel);
      for_each_access(plans_[plan], ref.step->work, [&](const Access& access) {
        View view = *access.view;
        if (is_product && view.strides[0] < view.strides[1])
          std::swap(view.shape[0], view.shape[1]), std::swap(view.strides[0], view.strides[1]);
        add_view(plan, view);
      });
      visit_operation(ref.step->work, [&](const auto& op) { add_operation(plan, op); });
      if (const auto* collective = std::get_if<Collective>(&ref.step->work)) {
        const Group& group = plans_[plan].groups[static_cast<std::size_t>(group_of(*collective))];
        collectives_[{group.name, group.ranks}][plan].push_back(collective);
      }
    }
  }

  void add_view(std::size_t plan, const View& view) {
    if (view.numel() == 0) return;
    const Stretches stretches = stretches_of(view);
    const std::size_t at = buffer(plan, view);
    divide(at, view.offset);
    divide(at, view.advance.stride);
    divide(at, stretches.length);
    for (const auto& [size, stride] : stretches.loops) divide(at, stride);
  }

  template <class Op>
  void add_operation(std::size_t plan, const Op& op) {
    const auto rows = [&](const auto&... views) {  // of [batch, seq, heads, dim]: rows are whole granules
      (divide(buffer(plan, views), views.shape[3]), ...);
    };
    const auto statistics = [&](const auto&... views) { (divide(buffer(plan, views), 1), ...); };
    const auto if_there = [&](const View& view, const auto& which) {
      if (!is_absent(view)) which(view);
    };
    if constexpr (std::is_same_v<Op, Copy> || std::is_same_v<Op, Cast> || std::is_same_v<Op, Accumulate>) {
      join(buffer(plan, op.in), buffer(plan, op.out));
    } else if constexpr (std::is_same_v<Op, AttentionForward>) {
      rows(op.q, op.k, op.v, op.out), statistics(op.lse);
    } else if constexpr (std::is_same_v<Op, AttentionBackward>) {
      rows(op.q, op.k, op.v, op.dout), statistics(op.lse);
      for (const View* view : {&op.out, &op.dq, &op.dk, &op.dv}) if_there(*view, rows);
      if_there(op.delta, statistics);
    } else if constexpr (std::is_same_v<Op, AttentionDelta>) {
      rows(op.out, op.dout), statistics(op.delta);
    } else if constexpr (std::is_same_v<Op, AttentionSinkGradient>) {
      rows(op.out, op.dout), statistics(op.lse, op.sinks, op.dsinks);
    } else if constexpr (std::is_same_v<Op, AttentionMerge>) {
      rows(op.in, op.out);
      for (const View& view : op.more) rows(view);
      if (is_absent(op.lse)) {
        join(buffer(plan, op.in), buffer(plan, op.out));
        for (const View& view : op.more) join(buffer(plan, view), buffer(plan, op.out));
      } else {
        statistics(op.in_lse, op.lse);
        for (const View& view : op.more_lse) statistics(view);
      }
    }
  }

  // Buffers that meet in the same collective. Those of a group match one by one on all members.
  void join_collectives() {
    for (const auto& [group, members] : collectives_) {
      std::vector<std::size_t> plans;  // by index in the group
      for (const Rank rank : group.second) {
        const auto plan =
            std::find_if(plans_.begin(), plans_.end(), [&](const Plan& p) { return p.self == rank; });
        if (plan == plans_.end()) break;
        plans.push_back(static_cast<std::size_t>(plan - plans_.begin()));
      }
      if (plans.size() < group.second.size()) continue;
      const auto first = members.find(plans[0]);
      if (first == members.end()) continue;
      for (std::size_t n = 0; n < first->second.size(); ++n) join_one(members, plans, n);
    }
  }

  using Members = std::map<std::size_t, std::vector<const Collective*>>;
  void join_one(const Members& members, const std::vector<std::size_t>& plans, std::size_t n) {
    std::vector<const Collective*> ops;
    for (const std::size_t plan : plans) {
      const auto found = members.find(plan);
      if (found == members.end() || found->second.size() <= n) return;
      ops.push_back(found->second[n]);
    }
    std::optional<std::size_t> all;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      std::visit(
          [&]<class Op>(const Op& op) {
            if constexpr (std::is_same_v<Op, Exchange>) {
              std::map<std::int32_t, std::size_t> nth;  // of the transfers with a peer
              for (const Transfer& send : op.sends) {
                const auto* peer = std::get_if<Exchange>(ops[static_cast<std::size_t>(send.peer)]);
                if (peer == nullptr) return;
                std::size_t skip = nth[send.peer]++;
                for (const Transfer& recv : peer->recvs) {
                  if (recv.peer != static_cast<std::int32_t>(i) || skip-- > 0) continue;
                  join(buffer(plans[i], send.view),
                       buffer(plans[static_cast<std::size_t>(send.peer)], recv.view));
                  break;
                }
              }
            } else {
              if (!all) all = buffer(plans[i], op.out);
              join(*all, buffer(plans[i], op.out));
              if (op.in.buffer >= 0) join(*all, buffer(plans[i], op.in));
            }
          },
          *ops[i]);
    }
  }

  std::span<const Plan> plans_;
  const std::vector<std::size_t>& first_;
  std::vector<std::size_t> parent_;
  std::vector<std::int64_t> divisor_;  // of roots; 0: nothing known yet
  std::map<std::pair<std::string, std::vector<Rank>>, Members> collectives_;
};

}  // namespace

ShadowMemory::ShadowMemory(std::span<const Plan> plans,
                           const std::function<std::int64_t(std::size_t, BufferId)>& row_of) {
  first_.push_back(0);
  for (const Plan& plan : plans) first_.push_back(first_.back() + plan.buffers.size());
  places_.resize(first_.back());
  GranuleFinder granules(plans, first_);
  for (std::size_t p = 0; p < plans.size(); ++p) {
    for (std::size_t b = 0; b < plans[p].buffers.size(); ++b) {
      granules.divide(first_[p] + b, row_of(p, static_cast<BufferId>(b)));
    }
  }
  for (std::size_t p = 0; p < plans.size(); ++p) {
    for (std::size_t b = 0; b < plans[p].buffers.size(); ++b) {
      Place& place = places_[first_[p] + b];
      place.granule = granules.granule(p, b);
      place.tags.resize(static_cast<std::size_t>(plans[p].buffers[b].numel / place.granule));
    }
  }
}

void ShadowMemory::read(std::size_t plan, const View& view, std::int64_t iteration,
                        std::vector<Tag>& tags) const {
  tags.clear();
  if (view.numel() == 0) return;
  const Place& from = place(plan, view.buffer);
  const Stretches stretches = stretches_of(view);
  tags.reserve(static_cast<std::size_t>(view.numel() / from.granule));
  for_each_stretch(stretches, offset_at(view, iteration), [&](std::int64_t begin) {
    const auto first = from.tags.begin() + begin / from.granule;
    tags.insert(tags.end(), first, first + stretches.length / from.granule);
  });
}

void ShadowMemory::write(std::size_t plan, const View& view, std::int64_t iteration,
                         std::span<const Tag> tags) {
  if (view.numel() == 0) return;
  Place& to = place(plan, view.buffer);
  CP_INVARIANT(static_cast<std::int64_t>(tags.size()) * to.granule == view.numel(), tags.size(), " tags of ",
               to.granule, " elements for a view of ", view.numel());
  const Stretches stretches = stretches_of(view);
  auto next = tags.begin();
  for_each_stretch(stretches, offset_at(view, iteration), [&](std::int64_t begin) {
    const std::int64_t size = stretches.length / to.granule;
    std::copy(next, next + size, to.tags.begin() + begin / to.granule);
    next += size;
  });
}

void ShadowMemory::fill(std::size_t plan, const View& view, std::int64_t iteration, const Tag& tag) {
  if (view.numel() == 0) return;
  Place& to = place(plan, view.buffer);
  const Stretches stretches = stretches_of(view);
  for_each_stretch(stretches, offset_at(view, iteration), [&](std::int64_t begin) {
    std::fill_n(to.tags.begin() + begin / to.granule, stretches.length / to.granule, tag);
  });
}

}  // namespace cp::sim
