// When work of communicators runs on the emulated GPU: see emulated_nccl.h.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>

namespace cp::emulated {

class NcclLaunchOrder {
 public:
  NcclLaunchOrder();

  std::uint64_t enqueue();  // the turn of work that is enqueued now
  // Runs the work in its turn; drops it when given up before. Each turn is to be run.
  void run(std::uint64_t turn, const std::function<bool()>& given_up, const std::function<void()>& work);

 private:
  enum class Mode { in_order, one_at_a_time, concurrent };
  bool may_run(std::uint64_t turn) const;

  const Mode mode_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t issued_ = 0;
  std::set<std::uint64_t> left_;  // turns that have not run
  bool busy_ = false;
};

// Of a rank's GPU: ranks that share one, each on a host of its own as they say, take turns as processes do.
NcclLaunchOrder& nccl_launch_order(int device, std::uint64_t host);

}  // namespace cp::emulated
