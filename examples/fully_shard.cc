// One parameter of hybrid-sharded data parallelism: two replicas of two shards. It is gathered in bf16, and
// its gradient is averaged over all four ranks in f32.
#include <vector>

#include "shared/fully_shard/hsdp_param.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"

int main() {
  const cp::Mesh mesh = cp::Mesh::parse("dp_replicate=2,dp_shard=2");
  cp::HsdpOptions options;
  options.shard = {"dp_shard"}, options.replicate = {"dp_replicate"};
  options.param_dtype = cp::DType::bf16, options.reduce_dtype = cp::DType::f32;
  const cp::HsdpParam param(cp::replicated_layout(mesh, {3, 2}, cp::DType::f32), options);  // 2 rows, and 1
  std::vector<int> right(4, 0);
  cp::sim::Fabric fabric(mesh.size());
  fabric.run([&](cp::Rank rank, cp::Device& device) {
    const auto rows = static_cast<std::size_t>(cp::local_numel(param.sharded(), rank));
    std::vector<float> shard(rows, 1.0F), reduced(rows);
    std::vector<std::uint16_t> whole(6),
        gradient(6, static_cast<std::uint16_t>(rank < 2 ? 0x3f80 : 0x4040));  // 1, 3
    const auto bytes = static_cast<std::int64_t>(4 * rows);
    cp::execute(param.unshard_plan(rank), device, {{0, shard.data(), bytes}, {1, whole.data(), 12}});
    cp::execute(param.reduce_plan(rank, {}), device, {{0, gradient.data(), 12}, {1, reduced.data(), bytes}});
    right[static_cast<std::size_t>(rank)] =
        whole == std::vector<std::uint16_t>(6, 0x3f80) && reduced == std::vector<float>(rows, 2.0F);
  });
  return right == std::vector<int>(4, 1) ? 0 : 1;
}
