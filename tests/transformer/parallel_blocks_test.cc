// What parallel blocks are for: rows travel half as often as where the MLP comes behind attention. Results
// are held by the tests of whole steps.
#include <variant>

#include <gtest/gtest.h>

#include "shared/plan/operations.h"
#include "shared/transformer/layer_plan.h"
#include "tests/transformer/step_requests.h"

namespace cp {
namespace {

// Collectives of the tensor-parallel group in a pass of one layer.
struct Moves {
  int gathers = 0, scatters = 0, sums = 0;
  bool operator==(const Moves&) const = default;
};
void PrintTo(const Moves& moves, std::ostream* out) {
  *out << moves.gathers << " gathers, " << moves.scatters << " scatters, " << moves.sums << " sums";
}

Moves moves_of(bool parallel, LayerPass pass, const char* layout) {
  StepRequest request = testing::small_request(layout);
  request.model.layers = 1, request.model.parallel_blocks = parallel;
  MixerPlanCache cache(2);
  const LayerPlan layer = layer_plan(request, LatentUse::nothing, pass, cache);
  Moves moves;
  for (const StepRef& ref : steps_of(layer.plan)) {
    const auto* transfer = std::get_if<Collective>(&ref.step->work);
    if (transfer == nullptr || layer.plan.groups[idx(group_of(*transfer))].name != "tp") continue;
    moves.gathers += std::holds_alternative<AllGather>(*transfer) ? 1 : 0;
    moves.scatters += std::holds_alternative<ReduceScatter>(*transfer) ? 1 : 0;
    moves.sums += std::holds_alternative<AllReduce>(*transfer) ? 1 : 0;
  }
  return moves;
}

TEST(ParallelBlocks, MoveRowsHalfAsOften) {
  const char* split = "tp=2,micro_batch=2";
  EXPECT_EQ(moves_of(false, LayerPass::forward, split), (Moves{2, 2, 0}));
  EXPECT_EQ(moves_of(true, LayerPass::forward, split), (Moves{1, 1, 0}));
  // Gradients of rows, and the rows again; and the sum of the norms' gradients.
  EXPECT_EQ(moves_of(false, LayerPass::backward, split), (Moves{4, 2, 1}));
  EXPECT_EQ(moves_of(true, LayerPass::backward, split), (Moves{2, 1, 1}));
}

TEST(ParallelBlocks, AddUpWholeRowsOnce) {
  const char* whole = "tp=2,micro_batch=2,sequence_parallel=no";
  for (const LayerPass pass : {LayerPass::forward, LayerPass::backward}) {
    EXPECT_EQ(moves_of(false, pass, whole), (Moves{0, 0, 2}));
    EXPECT_EQ(moves_of(true, pass, whole), (Moves{0, 0, 1}));
  }
}

}  // namespace
}  // namespace cp
