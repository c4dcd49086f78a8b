// A plan by hand: each of four ranks doubles its eight numbers, and gathers those of all. The checker proves
// the plans of all ranks together; when one rank gathers fewer it says who differs in what.
#include <cstdio>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"

cp::Plan doubled_and_gathered(cp::Rank rank, std::int64_t n) {
  cp::PlanBuilder b(rank, cp::host_target());
  const cp::BufferId x = b.inout("x", cp::DType::f32, n), all = b.output("all", cp::DType::f32, 4 * n);
  b.add(b.stream("compute"), cp::Scale{cp::flat_view(x, 0, n), 2}, "double");
  b.add(b.stream("comm"),
        cp::AllGather{b.group("dp", {0, 1, 2, 3}), cp::flat_view(x, 0, n), cp::flat_view(all, 0, 4 * n)});
  return std::move(b).build({});  // with the edge from the first step to the second, which are on two streams
}

int main() {
  std::vector<cp::Plan> plans;
  for (cp::Rank rank = 0; rank < 4; ++rank) plans.push_back(doubled_and_gathered(rank, 8));
  cp::check(plans);
  std::printf("%s", to_text(plans[0]).c_str());
  try {
    plans[3] = doubled_and_gathered(3, 7);
    cp::check(plans);
  } catch (const cp::CollectiveMismatch& error) {
    std::printf("%s\n", error.what());
  }
}
