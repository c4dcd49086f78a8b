#include "sim/cost/timeline/fold.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "sim/cost/timeline/kernel_cost.h"

namespace cp::sim {
namespace {

std::vector<Rank> shifted_group(const std::vector<Rank>& group, Rank by, Rank world) {
  std::vector<Rank> result;
  for (const Rank rank : group) result.push_back((rank + by) % world);
  std::sort(result.begin(), result.end());
  return result;
}

// Bytes to or from each rank; several transfers add up.
std::map<Rank, std::int64_t> bytes_by_rank(const std::vector<Transfer>& transfers, const Plan& plan,
                                           const std::vector<Rank>& group, Rank by, Rank world) {
  std::map<Rank, std::int64_t> bytes;
  for (const Transfer& transfer : transfers) {
    const DType dtype = plan.buffers[static_cast<std::size_t>(transfer.view.buffer)].dtype;
    bytes[(group[static_cast<std::size_t>(transfer.peer)] + by) % world] +=
        transfer.view.numel() * size_bytes(dtype);
  }
  return bytes;
}

// All that a kernel's time may hang on: as many pairs in other slices take another time.
auto all_of(const KernelWork& it) {
  const auto part = [](const MaskPart& mask) {
    return std::tuple(mask.pairs, mask.rows, mask.slices, mask.most_keys);
  };
  const AttentionCall& call = it.attention;
  return std::tuple_cat(
      std::tuple(it.flops, it.bytes, it.full_pairs, it.diagonal_pairs, it.rows, it.bytes_per_key),
      std::tuple(it.m, it.n, it.k, call.heads, call.group), part(call.full), part(call.causal),
      part(call.window));
}

// Whether `there`, a rank `by` ranks further, does what `here` does.
class Alike {
 public:
  Alike(const Plan& here, const Plan& there, Rank by, Rank world)
      : here_(here), there_(there), by_(by), world_(world) {}

  bool plans() const {
    const std::vector<StepRef> a = steps_of(here_), b = steps_of(there_);
    if (a.size() != b.size() || here_.streams.size() != there_.streams.size()) return false;
    if (here_.groups.size() != there_.groups.size()) return false;
    for (std::size_t g = 0; g < here_.groups.size(); ++g) {
      if (here_.groups[g].name != there_.groups[g].name) return false;
      if (shifted_group(here_.groups[g].ranks, by_, world_) !=
          shifted_group(there_.groups[g].ranks, 0, world_))
        return false;
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Step &mine = *a[i].step, &theirs = *b[i].step;
      if (a[i].count != b[i].count || a[i].segment != b[i].segment || mine.stream != theirs.stream ||
          mine.after != theirs.after || !work(mine.work, theirs.work)) {
        return false;
      }
    }
    return true;
  }

 private:
  bool work(const Work& mine, const Work& theirs) const {
    if (operation_name(mine) != operation_name(theirs)) return false;
    const auto* kernel = std::get_if<Kernel>(&mine);
    if (kernel != nullptr) return kernels(*kernel, std::get<Kernel>(theirs));
    const auto &a = std::get<Collective>(mine), &b = std::get<Collective>(theirs);
    if (group_of(a) != group_of(b)) return false;
    const auto* exchange = std::get_if<Exchange>(&a);
    return exchange != nullptr ? exchanges(*exchange, std::get<Exchange>(b)) : volumes(a, b);
  }

  bool kernels(const Kernel& mine, const Kernel& theirs) const {
    return all_of(work_of(mine, here_)) == all_of(work_of(theirs, there_));
  }

  bool exchanges(const Exchange& mine, const Exchange& theirs) const {
    const std::vector<Rank>&a = ranks(here_, mine.group), &b = ranks(there_, theirs.group);
    return bytes_by_rank(mine.sends, here_, a, by_, world_) ==
               bytes_by_rank(theirs.sends, there_, b, 0, world_) &&
           bytes_by_rank(mine.recvs, here_, a, by_, world_) ==
               bytes_by_rank(theirs.recvs, there_, b, 0, world_);
  }

  bool volumes(const Collective& mine, const Collective& theirs) const {
    const auto total = [](const Collective& collective, const Plan& plan) {
      const Volume all = volume(collective, plan);
      std::pair<std::int64_t, std::int64_t> sums;
      for (const std::int64_t bytes : all.sent) sums.first += bytes;
      for (const std::int64_t bytes : all.received) sums.second += bytes;
      return sums;
    };
    return total(mine, here_) == total(theirs, there_);
  }

  static const std::vector<Rank>& ranks(const Plan& plan, GroupId group) {
    return plan.groups[static_cast<std::size_t>(group)].ranks;
  }

  const Plan &here_, &there_;
  const Rank by_, world_;
};

// Two groups of one rank that become one another when shifted could not be told apart.
bool groups_are_distinct(const Plan& plan, const Fold& fold) {
  std::set<std::pair<std::string, std::vector<Rank>>> seen;
  return std::all_of(plan.groups.begin(), plan.groups.end(), [&](const Group& group) {
    return seen.emplace(group.name, orbit_key(group.ranks, fold)).second;
  });
}

bool symmetric(std::span<const Plan> plans, const Fold& fold) {
  for (const Plan& plan : plans.first(static_cast<std::size_t>(fold.block))) {
    if (!groups_are_distinct(plan, fold)) return false;
  }
  for (std::size_t r = 0; r + static_cast<std::size_t>(fold.block) < plans.size(); ++r) {
    if (!Alike(plans[r], plans[r + static_cast<std::size_t>(fold.block)], fold.block, fold.world).plans())
      return false;
  }
  return true;
}

}  // namespace

Fold find_fold(std::span<const Plan> plans, const Cluster& cluster) {
  const auto world = static_cast<Rank>(plans.size());
  if (world != cluster.num_gpus() || cluster.nodes < 2) return {};
  for (Rank rank = 0; rank < world; ++rank) {
    if (plans[static_cast<std::size_t>(rank)].self != rank) return {};
  }
  const bool one_leaf = cluster.network.nodes_per_leaf >= cluster.nodes;
  // NVLink domains of several nodes stay whole, and so do leaves.
  int unit = std::max(1, cluster.node.nvlink_domain / cluster.node.gpus);
  if (!one_leaf) unit = std::max(unit, cluster.network.nodes_per_leaf);
  for (int nodes = unit; nodes < cluster.nodes; nodes += unit) {
    if (cluster.nodes % nodes != 0) continue;
    const Fold fold{world, nodes * cluster.node.gpus};
    if (symmetric(plans, fold)) return fold;
  }
  return {};
}

int period(const std::vector<Rank>& group, const Fold& fold) {
  if (!fold.folded()) return 1;
  const std::vector<Rank> here = shifted_group(group, 0, fold.world);
  for (int blocks = 1; blocks < fold.blocks(); ++blocks) {
    if (fold.blocks() % blocks == 0 && shifted_group(group, blocks * fold.block, fold.world) == here)
      return blocks;
  }
  return fold.blocks();
}

std::vector<Rank> orbit_key(const std::vector<Rank>& group, const Fold& fold) {
  if (!fold.folded()) return group;
  std::vector<Rank> least = shifted_group(group, 0, fold.world);
  for (int blocks = 1; blocks < fold.blocks(); ++blocks) {
    least = std::min(least, shifted_group(group, blocks * fold.block, fold.world));
  }
  return least;
}

}  // namespace cp::sim
