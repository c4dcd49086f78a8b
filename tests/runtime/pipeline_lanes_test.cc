// A rank of a pipeline computes beside its transfers. Over Gloo a callback stands before each collective, on
// its stream's thread: so one can wait there for another, which never comes where the rank does one thing
// after the other.
#ifdef CP_HAVE_GLOO
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/gloo/gloo_device.h"
#include "shared/base/index.h"
#include "shared/plan/plan_walk.h"
#include "shared/training/initial_parameters.h"
#include "shared/training/trainer.h"
#include "tests/runtime/processes.h"
#include "tests/transformer/step_requests.h"
#endif

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(PipelineLanes, AreTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

using runtime::CollectiveBegin;
using runtime::GlooDevice;

// Of a rank of the last of two stages: which of its runs have begun, as "forward 1", "rows 2", "gradients 0".
class Begun {
 public:
  Begun(const StepRequest& request, Rank self) {
    for (const StepPart part : {StepPart::forward, StepPart::backward}) {
      const Plan plan = step_plan(request, part, 1, self);
      for (const StepRef& ref : steps_of(plan)) {
        if (!is_collective(*ref.step)) continue;
        first_of_[plan.inputs] = {name(part), ref.id};
        break;
      }
    }
  }

  void collective(const CollectiveBegin& begin) {
    const std::string what = what_begins(begin);
    if (what.empty()) return;
    std::unique_lock lock(mutex_);
    const std::string run = str(what, " ", count_[what]++);
    begun_.push_back(run);
    changed_.notify_all();
    // The first backward pass is not over before the second rows are waited for, and the first gradients do
    // not leave before the second forward pass is at work.
    if (run == "backward 0") await("rows 1", run, lock);
    if (run == "gradients 0") await("forward 1", run, lock);
  }

  std::string missing() {
    const std::lock_guard lock(mutex_);
    return missing_;
  }

 private:
  // Empty of collectives behind a pass's first one.
  std::string what_begins(const CollectiveBegin& begin) const {
    if (begin.group.name == "pp") return "rows";
    if (begin.group.name == "pp_gradients") return "gradients";
    const auto pass = first_of_.find(begin.plan.inputs);
    if (pass == first_of_.end() || pass->second.second != begin.step) return "";
    return std::string(pass->second.first);
  }

  void await(const std::string& other, const std::string& run, std::unique_lock<std::mutex>& lock) {
    const auto has_begun = [&] { return std::find(begun_.begin(), begun_.end(), other) != begun_.end(); };
    // Chosen: nobody waits for so long but where the other one waits for this one.
    if (!changed_.wait_for(lock, std::chrono::seconds(60), has_begun))
      missing_ += str(run, " has waited for ", other, " in vain; ");
  }

  std::map<Digest, std::pair<std::string_view, StepId>> first_of_;  // by the plan's inputs
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> count_;
  std::vector<std::string> begun_;
  std::string missing_;
};

TEST(PipelineLanes, TransfersAreUnderWayBesidePasses) {
  // Passes have collectives of their tp ranks.
  StepRequest request = testing::small_request("pp=2,tp=2");
  request.workload.global_batch = 4;
  StepBatch batch;
  batch.learning_rate = 1e-3;
  for (std::int64_t token = 0; token < request.workload.tokens(); ++token) {
    batch.tokens.push_back(static_cast<std::int32_t>(token % request.model.vocab));
    batch.labels.push_back(static_cast<std::int32_t>((token + 1) % request.model.vocab));
  }
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(
      4,
      [&](Rank rank) -> std::string {
        Begun begun(request, 3);
        runtime::GlooOptions options{.rank = rank, .store_directory = store.path()};
        options.wait_timeout = std::chrono::minutes(5);
        const bool is_last = step_order(request, rank).passes.front().stage == 1;
        if (is_last) options.on_collective = [&](const CollectiveBegin& begin) { begun.collective(begin); };
        GlooDevice device(options);
        Trainer trainer(request, device, InitialParameters(request.model, 1));
        const double loss = trainer.step(batch).loss;
        if (is_last && !(loss >= 0)) return str("a loss of ", loss);
        return begun.missing();
      },
      std::chrono::seconds(240));
  EXPECT_EQ(said, std::vector<std::string>(4));
}

#endif

}  // namespace
}  // namespace cp
