#include "sim/scenario/training_threads.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

#include "shared/base/index.h"
#include "sim/fabric/fabric.h"

namespace cp::sim {
namespace {

// Where threads tell one another a text each. When one has failed, the others wait no longer.
class Meeting {
 public:
  explicit Meeting(int threads) : own_(idx(threads)) {}

  std::vector<std::string> gather(Rank rank, const std::string& own) {
    std::unique_lock lock(mutex_);
    own_[idx(rank)] = own;
    const std::int64_t meeting = meetings_;
    if (++arrived_ == std::ssize(own_)) {
      all_ = own_, arrived_ = 0, ++meetings_;
      met_.notify_all();
    }
    met_.wait(lock, [&] { return meetings_ != meeting || failed_; });
    // Nobody begins the next meeting before all have left this one with a copy: they arrive there first.
    if (meetings_ == meeting) throw Cancelled("another rank has failed");
    return all_;
  }

  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    met_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable met_;
  std::vector<std::string> own_, all_;
  std::int64_t meetings_ = 0, arrived_ = 0;
  bool failed_ = false;
};

}  // namespace

ThreadedTraining train_on_threads(const TrainJob& job, TrainingOptions options, bool traces) {
  Fabric fabric(job.world(), {.record_traces = traces});
  Meeting meeting(job.world());
  ThreadedTraining training;
  fabric.run([&](Rank rank, Device& device) {
    TrainingOptions own = options;
    own.gather = [&](const std::string&, const std::string& text) { return meeting.gather(rank, text); };
    own.trace = traces ? &fabric.traces()[idx(rank)] : nullptr;
    try {
      TrainingResult result = run_training(job, device, own);
      if (rank == 0) training.result = std::move(result);
    } catch (...) {
      meeting.fail();
      throw;
    }
  });
  if (traces) training.traces = fabric.traces();
  return training;
}

}  // namespace cp::sim
