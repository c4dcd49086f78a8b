// NcclHandles owns all communicators of a device. It knows who uses them, and ends them.
//
// NCCL demands that no thread uses a communicator while another frees it. So the rank's thread calls enter()
// before it calls NCCL, and leave() afterwards. This costs it two stores, and never a wait. Once the end of
// the communicators has begun, it cannot enter any more. The end runs on a thread of its own, for which
// nobody must wait: if a call of NCCL hangs there, it is left behind with all that it uses.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
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
    make,  // makes communicators or asks for their state; it returns soon, since parents do not block
    use,   // uses complete ones; it may connect them, and then returns late, or when they are aborted
  };
  // Returns whether the thread may call NCCL. If so, it must call leave() afterwards.
  bool enter(Call call = Call::use);
  void leave() { state_->inside.store(Call::none, std::memory_order_release); }
  // Makes a place for a communicator. NCCL writes the communicator there, maybe later and on a thread of its
  // own. It is ended with the others. A `parent` is one from which others are split.
  enum class Kind { parent, child };
  ncclComm_t* add(Kind kind);
  // Destroys one communicator, whose work is done and which nobody uses any more, on a thread of its own; the
  // place may be given out again. NCCL waits there for the ranks of the same machine, which must do the same.
  // Once the end has begun this does nothing, since that one ends the communicator.
  void retire(ncclComm_t* place);

  // ---- any thread
  // The state of the communicator as NCCL tells it (ncclCommGetAsyncError), or success if the end has begun.
  ncclResult_t async_error(ncclComm_t comm) const;
  bool is_ending() const { return state_->ending.load(std::memory_order_acquire); }
  // Both begin the end and return at once. Only the first call of them has an effect, and returns true.
  // destroy() aborts the communicators that have failed, and destroys the others.
  bool abort() { return end(End::abort); }
  bool destroy() { return end(End::destroy); }
  // Waits until the end has begun, and then for at most `timeout` from its beginning. Returns whether all
  // communicators are gone, the retired ones among them.
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
    std::mutex mutex;   // guards what follows
    std::condition_variable changed;
    std::deque<ncclComm_t> parents, children;              // deques, because the addresses must stay
    std::vector<ncclComm_t*> free_parents, free_children;  // places of those that were retired
    int retiring = 0;                                      // threads of retire()
    bool ended = false, failed = false;
    Clock::time_point began;
  };

  bool end(End how);
  static void run_end(State& state, End how);
  static bool end_all(State& state, End how);
  template <class Free>
  static bool end_together(const std::vector<const ncclComm_t*>& places, End how, const Free& may_free);

  std::shared_ptr<State> state_;  // shared with the thread of the end, which may live longer
};

// Waits on the host until is_done(), or until the end of the communicators has begun. Looks all the time at
// first, and after kSpin only every kNap: a short run ends without delay, and a long one leaves the processor
// to others. Both are chosen; kNap is Linux's default timer slack, by which shorter sleeps would be late
// anyway. cudaStreamSynchronize is not used, because an abort might not end it.
template <class IsDone>
void await_on_host(const NcclHandles& handles, const IsDone& is_done) {
  constexpr std::chrono::microseconds kSpin{200}, kNap{50};
  const auto begin = std::chrono::steady_clock::now();
  while (!handles.is_ending() && !is_done()) {
    if (std::chrono::steady_clock::now() - begin < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace cp::runtime
