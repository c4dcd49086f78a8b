// NcclHandles: all communicators of a device, who may use them, and their end.
//
// NCCL wants that no other thread uses a communicator which is freed. The rank's thread therefore enters
// before it calls NCCL and leaves afterwards, which costs it two stores and never a wait; once the end has
// begun it cannot enter any more. The end runs on a thread of its own, which nobody needs to wait for: what
// hangs there is left behind, with all that it uses.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <nccl.h>

namespace cp::runtime {

class NcclHandles {
 public:
  explicit NcclHandles(int cuda_device) : state_(std::make_shared<State>(cuda_device)) {}
  NcclHandles(const NcclHandles&) = delete;
  NcclHandles& operator=(const NcclHandles&) = delete;

  // ---- the rank's thread
  enum class Call : char {
    none,
    make,  // makes communicators or asks for them: returns soon, since those that are being made do not block
    use,   // uses complete ones: may connect them, and then returns late, or when they are aborted
  };
  // Whether it may call NCCL; then it calls leave() afterwards.
  bool enter(Call call = Call::use);
  void leave() { state_->inside.store(Call::none, std::memory_order_release); }
  // A place for a communicator that NCCL writes, maybe later and from a thread of its own; it is ended with
  // the others. A `parent` is one from which others are split.
  enum class Kind { parent, child };
  ncclComm_t* add(Kind kind);

  // ---- any thread
  // What NCCL says of the communicator (ncclCommGetAsyncError); success once the end has begun.
  ncclResult_t async_error(ncclComm_t comm) const;
  bool is_ending() const { return state_->ending.load(std::memory_order_acquire); }
  // Begin the end; the first call counts, and returns true. Return at once. destroy() aborts those
  // communicators that have failed.
  bool abort() { return end(End::abort); }
  bool destroy() { return end(End::destroy); }
  // Whether all communicators have gone within `timeout` of the end's beginning, for which it waits first;
  // blocks until that is clear.
  bool await_end(std::chrono::milliseconds timeout) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class End { abort, destroy };
  struct State {
    explicit State(int device) : cuda_device(device) {}
    const int cuda_device;
    std::atomic<Call> inside{Call::none};
    std::atomic<bool> ending{false};
    std::mutex asking;  // held by async_error
    std::mutex mutex;   // of the below
    std::condition_variable changed;
    std::deque<ncclComm_t> parents, children;  // addresses stay
    bool ended = false, failed = false;
    Clock::time_point began;
  };

  bool end(End how);
  static void run_end(State& state, End how);
  static bool end_all(State& state, End how);

  std::shared_ptr<State> state_;  // the end's too
};

}  // namespace cp::runtime
