#include "sim/planner/search/part_key.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <vector>

#include "shared/transformer/rank_groups.h"

namespace cp::sim {
namespace {

// A stage's passes meet data parallelism where gradients are scattered behind each layer, or go to the host
// once they are sums of all ranks. Elsewhere shards and replicas are as good as one another.
bool meets_data_parallelism(const StepRequest& request) {
  return !request.layout.keeps_whole_gradients() || request.workload.optimizer.offload;
}

// All that a plan of the update does not read is as in a default layout.
ParallelLayout seen_by_update(const ParallelLayout& layout) {
  ParallelLayout seen;
  static_cast<ParallelDegrees&>(seen) = layout;
  seen.virtual_stages = layout.virtual_stages;
  seen.sharding = layout.sharding, seen.zero = layout.zero;
  seen.sync_once = layout.sync_once, seen.bucket = layout.bucket, seen.threshold = layout.threshold;
  seen.sequence_parallel = layout.sequence_parallel;
  return seen;
}

// Which layers a stage has is said by these.
ParallelLayout seen_by_stage(const StepRequest& request, StepPart part, int stage) {
  ParallelLayout seen = request.layout;
  const bool has_loss = part == StepPart::forward && stage == seen.pp * seen.virtual_stages - 1;
  if (!has_loss) seen.loss_chunks = 1;
  seen.pp = seen.virtual_stages = 1;
  if (meets_data_parallelism(request)) return seen;
  seen.dp_replicate = seen.dp_shard = 1, seen.sharding = {};
  return seen;
}

ParallelLayout seen_by(const StepRequest& request, StepPart part, int stage) {
  ParallelLayout seen = part == StepPart::micro_batch ? request.layout
                        : is_of_update(part)          ? seen_by_update(request.layout)
                                                      : seen_by_stage(request, part, stage);
  seen.order = {};  // ranks say where they are themselves
  return seen;
}

// The sizes and steps of a plan, whatever the ranks are called.
Hasher key_of_plan(const StepRequest& request, StepPart part, int stage, const RankGroups& groups) {
  const ParallelLayout& layout = request.layout;
  const int stages = layout.pp * layout.virtual_stages;
  Hasher key;
  key.add(static_cast<int>(part));
  hash(key, seen_by(request, part, stage));
  // All ranks of a stage have as many parameters, whose shards are of one size.
  if (is_of_update(part)) {
    key.add(stage);
    return key;
  }
  // The places in groups.
  key.add(groups.tp()).add(groups.cp()).add(groups.data_index() % layout.ep);
  if (part != StepPart::micro_batch) {
    key.add(stage == 0).add(stage == stages - 1).add_all(kinds_of_stage(request.model, layout, stage));
    key.add_all(homes_of_stage(request.model, request.workload, layout, stage));
  }
  return key;
}

// Numbers things by their first appearance.
class Numbers {
 public:
  std::ptrdiff_t of(int id) {
    if (ids_.empty() || id > most_) {  // as mostly, since groups mostly ascend
      most_ = id;
      return add(id);
    }
    const auto found = std::find(ids_.rbegin(), ids_.rend(), id);
    return found == ids_.rend() ? add(id) : ids_.rend() - found - 1;
  }

 private:
  std::ptrdiff_t add(int id) {
    ids_.push_back(id);
    return std::ssize(ids_) - 1;
  }
  std::vector<int> ids_;
  int most_ = 0;
};

// Where the ranks of a group lie, as far as a replay can tell (port_loads.cc, nccl_model.cc): which of them
// share an NVLink domain, a node and a NIC. What is on one node goes by NVLink, and to the NIC no slower than
// this is, so that PCIe switches do not matter; where that is not so, it is the place in its node or domain
// that counts. The smaller of both is a part of the larger one.
void add_places(Hasher& key, std::span<const Rank> ranks, const Cluster& cluster) {
  const Node& node = cluster.node;
  const bool by_nvlink =
      node.nvlink_gbps > 0 && node.nvlink_domain >= node.gpus && node.pcie_gbps >= cluster.network.nic_gbps;
  Numbers domains, nodes, nics;
  key.add(ranks.size());
  for (const Rank rank : ranks) {
    const int unit = std::max(node.gpus, node.nvlink_domain), place = rank % node.gpus;
    key.add(domains.of(rank / unit));
    if (!by_nvlink) {
      key.add(rank % unit);
      continue;
    }
    key.add(nodes.of(rank / node.gpus));
    key.add(nics.of(rank / node.gpus * node.gpus + place / cluster.network.gpus_per_nic));
  }
}

}  // namespace

bool is_of_update(StepPart part) { return part == StepPart::reduce || part == StepPart::update; }

bool may_be_shared(StepPart part) { return part != StepPart::prefill && part != StepPart::decode; }

Digest memory_key(const StepRequest& request, StepPart part, int stage, Rank self) {
  return key_of_plan(request, part, stage, RankGroups(request.layout, self)).digest();
}

Digest clock_key(const StepRequest& request, StepPart part, int stage, Rank self, const Cluster& cluster) {
  const ParallelLayout& layout = request.layout;
  const RankGroups groups(layout, self);
  Hasher key = key_of_plan(request, part, stage, groups);
  // Sums over replicas have groups on all axes: the axes' order says where they are.
  if (is_of_update(part) || request.workload.optimizer.offload) {
    key.add(self).add(static_cast<int>(layout.order)).add(layout.pp);
    return key.digest();
  }
  for (const std::vector<Rank>& group :
       {groups.tp_group(), groups.cp_group(), groups.row_group(), groups.ep_group()})
    add_places(key, group, cluster);
  if (part == StepPart::micro_batch || meets_data_parallelism(request)) {
    // Whoever shares parameters is among these, and who that is says the number of the rank.
    key.add(layout.order == AxisOrder::tp_dp_cp_pp).add(groups.data_index());
    add_places(key, groups.replica_group(), cluster);
  }
  if (is_transfer(part)) {
    const bool before = part == StepPart::recv_forward || part == StepPart::send_backward;
    const int neighbour = before ? stage - 1 + layout.pp : stage + 1;
    add_places(key, std::vector<Rank>{self, groups.on_pipeline_rank(neighbour % layout.pp)}, cluster);
  }
  return key.digest();
}

}  // namespace cp::sim
