// One call into each component: a plan that the checker proves, run on the fabric and replayed on a cluster.
#include <cstdio>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/version.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/timeline/timeline.h"
#include "sim/fabric/fabric.h"

namespace {

cp::Plan sum_of_two(cp::Rank rank, const std::vector<cp::Rank>& ranks) {
  cp::PlanBuilder b(rank, cp::host_target());
  const cp::GroupId group = b.group("all", ranks);
  const cp::BufferId x = b.input("x", cp::DType::f32, 1024), y = b.output("y", cp::DType::f32, 1024);
  b.add(b.stream("main"),
        cp::AllReduce{group, cp::ReduceOp::sum, cp::flat_view(x, 0, 1024), cp::flat_view(y, 0, 1024)});
  return std::move(b).build({});
}

int run() {
  const std::vector<cp::Plan> plans = {sum_of_two(0, {0, 1}), sum_of_two(1, {0, 1})};
  cp::check(plans);

  std::vector<float> sums(2);
  cp::sim::Fabric fabric(2);
  fabric.run([&](cp::Rank rank, cp::Device& device) {
    std::vector<float> in(1024, static_cast<float>(rank + 1)), out(1024);
    cp::execute(plans[static_cast<std::size_t>(rank)], device, {{0, in.data(), 4096}, {1, out.data(), 4096}});
    sums[static_cast<std::size_t>(rank)] = out.back();
  });

  const cp::sim::Timeline timeline =
      cp::sim::replay(plans, cp::sim::find_cluster("dgx-h100", 1), cp::sim::find_software("megatron"));
  // An exception that is thrown inside of a library is caught by its type.
  bool caught = false;
  try {
    cp::check(std::vector<cp::Plan>{sum_of_two(0, {0, 1}), sum_of_two(1, {1, 0})});
  } catch (const cp::Error& error) {
    caught = error.kind() == cp::ErrorKind::collective_mismatch;
  }
  const bool right = sums == std::vector<float>(2, 3) && timeline.time_ns > 0 && caught;
  std::printf("cpsim %s: %s\n", CP_VERSION, right ? "right" : "WRONG");
  return right ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const cp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
