// Strategies whose transfers are copy engines' leave the traces of the simulated fabric.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nccl.h>

#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl_versions.h"
#include "shared/base/text.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/identity/identity_case.h"

namespace cp {
namespace {

using emulated::nccl_use;
using emulated::NcclUse;
using runtime::NcclDevice;
using testing::GpuJob;

// On as many ranks: forward and backward, compared with the simulated fabric, and whether NCCL's copy engines
// did all that is theirs.
TEST(NcclWindowsIdentity, StrategiesLeaveTheTracesOfTheFabric) {
  if (NCCL_VERSION_CODE < runtime::kNcclCopyEnginesSince)
    GTEST_SKIP() << "this header of NCCL has no copy engines";
  constexpr bool kHasPuts = NCCL_VERSION_CODE >= runtime::kNcclPutSince;
  for (const int ranks : {2, 4}) {
    std::vector<testing::IdentityCase> cases;
    for (const char* strategy : {"ulysses", "all_gather", "ulysses_all_gather", "ring", "double_ring"}) {
      if (!kHasPuts && std::string_view(strategy).ends_with("ring")) continue;
      for (const bool causal : {false, true}) {
        proto::Scenario scenario;
        proto::Attention& run = *scenario.mutable_run();
        run.set_mesh(str("cp=", ranks));
        run.set_strategy(strategy);
        run.set_balance(causal ? "head_tail" : "contiguous");
        run.set_seq_len(16LL * ranks);
        run.set_q_heads(8), run.set_kv_heads(4), run.set_head_dim(8);
        run.set_causal(causal);
        run.set_backward(true);
        run.set_transfers("copy_engine");
        cases.push_back(testing::make_identity_case(
            str("copy_engine_", strategy, "_", ranks, causal ? "_causal" : ""), scenario, host_target()));
      }
    }
    const NcclUse before = nccl_use();
    const GpuJob job(ranks);
    const auto said = testing::run_gpu_ranks(ranks, [&](Rank rank) {
      NcclDevice device(job.options(rank));
      return testing::run_cases(cases, device, "cprun --backend nccl");
    });
    for (std::size_t rank = 0; rank < said.size(); ++rank)
      EXPECT_TRUE(said[rank].empty()) << "rank " << rank << said[rank];
    EXPECT_GT(nccl_use().by_copy_engines, before.by_copy_engines);
    EXPECT_EQ(nccl_use().fell_back, before.fell_back);
  }
}

}  // namespace
}  // namespace cp
