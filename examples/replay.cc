// A replay: the plans of ring attention on 8 ranks, on the model of a cluster. No thread runs and no byte
// moves.
#include <cstdio>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/timeline/timeline.h"

int main() {
  cp::AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 131072;
  request.problem.q_heads = 32, request.problem.kv_heads = 8;
  request.problem.head_dim = request.problem.v_head_dim = 128;
  request.problem.dtype = cp::DType::bf16;
  request.problem.causal = true;
  request.ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  request.strategy.balance.kind = cp::Balance::Kind::head_tail;
  const std::vector<cp::Plan> plans =
      attention_plans(request, cp::AttentionPass::forward, cp::gpu_target("sm90"));
  const cp::sim::Timeline timeline =
      cp::sim::replay(plans, cp::sim::find_cluster("dgx-h100", 1), cp::sim::find_software("megatron"));
  for (const cp::sim::RankTimeline& rank : timeline.ranks)
    std::printf("rank %d: %.2f ms, of which kernels run %.2f ms\n", rank.rank, rank.end_ns / 1e6,
                rank.compute_ns / 1e6);
  std::printf("%.2f ms; the longest chain of steps that wait for each other has %zu\n",
              timeline.time_ns / 1e6, timeline.critical_path.size());
}
