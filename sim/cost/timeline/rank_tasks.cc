#include "sim/cost/timeline/rank_tasks.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/plan/host_place.h"
#include "shared/plan/operations.h"
#include "shared/plan/recurrence_rules.h"
#include "sim/base/stop.h"
#include "sim/cost/timeline/copy_engines.h"
#include "sim/cost/timeline/grouped_products.h"
#include "sim/cost/timeline/issue_time.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/merge_stream.h"

namespace cp::sim {
namespace {

class TaskList {
 public:
  TaskList(const Plan& plan, const std::vector<StepRef>& steps, const Cluster& cluster,
           const SoftwareProfile& software, const CollectiveSettings& settings, const RateFactors& factors)
      : plan_(plan),
        steps_(steps),
        software_(software),
        factors_(factors),
        launch_ns_(cluster.gpu.kernel_launch_us * kNsPerUs),
        loads_(plan, cluster, settings),
        kernels_(cluster, software),
        grouped_(plan),
        streams_(plan.streams.size()) {
    if (plan.self >= cluster.num_gpus()) {
      throw InvalidInput(str("rank ", plan.self, " has no GPU on ", cluster.name, ", which has ",
                             cluster.num_gpus(), "; use --nodes ", plan.self / cluster.node.gpus + 1));
    }
    require_copy_engine_reach(plan, cluster);
  }

  RankTasks make() && {
    std::vector<double> issue;
    for (const StepRef& ref : steps_) {
      look_at_stop();
      RankTasks::Stream& stream = streams_[idx(ref.step->stream)];
      if (stream.parts.empty() || stream.parts.back().segment != ref.segment) {
        stream.parts.push_back({ref.segment, ref.count, stream.tasks.size(), stream.tasks.size()});
      }
      ++stream.parts.back().end;
      issue.push_back(kernels_.launches(ref.id, ref.step->work, grouped_) * issue_ns(*ref.step, software_) *
                      factors_[Rate::host]);
      stream.tasks.push_back(task_of(ref));
    }
    return {std::move(streams_),
            std::move(needs_),
            std::move(groups_),
            HostClock(plan_, issue),
            loads_.inside_gbps() / factors_[Rate::inside],
            loads_.network_gbps() / factors_[Rate::network]};
  }

 private:
  RankTask task_of(const StepRef& ref) {
    RankTask task;
    task.step = ref.id;
    if (const auto* kernel = std::get_if<Kernel>(&ref.step->work)) {
      set_kernel(*kernel, task);
      task.merges = merges_beside(plan_, ref.step->stream);
    } else {
      const Collective& collective = std::get<Collective>(ref.step->work);
      task.collective = true;
      task.load = slower(loads_.of(collective));
      task.quiet = plan_.groups[idx(group_of(collective))].copy_engine;
      task.sum = sum_of(plan_.groups[idx(group_of(collective))].name);
    }
    task.first_need = needs_.size();
    for (const Edge& edge : ref.step->after) {
      const StepRef& before = steps_[idx(edge.step)];
      if (before.segment == ref.segment) {
        needs_.push_back({edge.step, 1 - edge.iterations_back, true});
      } else {
        needs_.push_back({edge.step, before.count, false});
      }
    }
    task.num_needs = needs_.size() - task.first_need;
    return task;
  }

  void set_kernel(const Kernel& kernel, RankTask& task) const {
    task.ns = kernels_.ns(task.step, kernel, plan_, grouped_);
    task.of_host = place_of(kernel, plan_) != KernelPlace::gpu;
    if (std::holds_alternative<AttentionForward>(kernel)) {
      task.sum = RankTask::kAttention, task.beside_transfers = software_.forward_progress;
      task.rate = Rate::attention_forward;
    } else if (std::holds_alternative<AttentionBackward>(kernel)) {
      task.sum = RankTask::kAttention, task.beside_transfers = software_.backward_progress;
      task.rate = Rate::attention_backward;
    } else if (is_recurrence(kernel)) {  // what stands in attention's place
      task.sum = RankTask::kAttention;
    } else if (std::holds_alternative<MatMul>(kernel)) {
      task.sum = RankTask::kProduct, task.rate = Rate::products;
    } else if (task.of_host) {
      task.sum = RankTask::kOffload, task.rate = Rate::offload;
    }
    const double launch_ns = std::min(launch_ns_, task.ns);
    task.ns = launch_ns * factors_[Rate::launch] + (task.ns - launch_ns) * factors_[task.rate];
  }

  PortLoad slower(PortLoad load) const {
    for (const auto& [flow, rate] :
         {std::pair(&load.inside, Rate::inside), std::pair(&load.network, Rate::network)}) {
      flow->delay_ns *= factors_[Rate::latency], flow->gbps /= factors_[rate];
    }
    return load;
  }

  std::size_t sum_of(const std::string& group) {
    const auto found = std::find(groups_.begin(), groups_.end(), group);
    const std::size_t place = idx(found - groups_.begin());
    if (found == groups_.end()) groups_.push_back(group);
    return RankTask::kFixedSums + place;
  }

  const Plan& plan_;
  const std::vector<StepRef>& steps_;
  const SoftwareProfile& software_;
  const RateFactors& factors_;
  const double launch_ns_;
  PortLoads loads_;
  const KernelCost kernels_;
  const GroupedProducts grouped_;
  std::vector<RankTasks::Stream> streams_;
  std::vector<RankNeed> needs_;
  std::vector<std::string> groups_;
};

}  // namespace

RankTasks rank_tasks(const Plan& plan, const std::vector<StepRef>& steps, const Cluster& cluster,
                     const SoftwareProfile& software, const CollectiveSettings& settings,
                     const RateFactors& factors) {
  return TaskList(plan, steps, cluster, software, settings, factors).make();
}

}  // namespace cp::sim
