#include "runtime/nccl/nccl_handles.h"

#include <thread>

#include <cuda_runtime_api.h>

namespace cp::runtime {
namespace {

// A call takes microseconds, unless it waits for a peer; then only the abort itself gets it out.
constexpr std::chrono::milliseconds kPatienceWithCalls{100};

}  // namespace

bool NcclHandles::enter() {
  state_->inside.store(true);  // sequentially consistent, as in run_end: one of the two sees the other
  if (!state_->ending.load()) return true;
  leave();
  return false;
}

ncclComm_t* NcclHandles::add(Kind kind) {
  const std::lock_guard lock(state_->mutex);
  return &(kind == Kind::parent ? state_->parents : state_->children).emplace_back(nullptr);
}

ncclResult_t NcclHandles::async_error(ncclComm_t comm) const {
  const std::lock_guard lock(state_->asking);
  if (is_ending()) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
  return result != ncclSuccess ? result : state;
}

void NcclHandles::end(End function) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ending.load()) return;
    state_->began = Clock::now();
    state_->ending.store(true);
  }
  std::thread([state = state_, function] { run_end(*state, function); }).detach();
}

void NcclHandles::run_end(State& state, End function) {
  const auto until = Clock::now() + kPatienceWithCalls;
  while (state.inside.load() && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  { const std::lock_guard lock(state.asking); }  // who asked before is done, and nobody asks any more
  static_cast<void>(cudaSetDevice(state.cuda_device));
  // In one group: an abort waits for the GPU, where another communicator's kernel may wait for what is not aborted yet. Parents
  // first: a split that is under way ends with its parent, and has then written its child or not.
  static_cast<void>(ncclGroupStart());
  for (const auto* comms : {&state.parents, &state.children}) {
    for (const ncclComm_t comm : *comms) {
      if (comm != nullptr) static_cast<void>(function(comm));
    }
  }
  static_cast<void>(ncclGroupEnd());
  {
    const std::lock_guard lock(state.mutex);
    state.ended = true;
  }
  state.changed.notify_all();
}

bool NcclHandles::await_end(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, state_->began + timeout, [&] { return state_->ended; });
}

}  // namespace cp::runtime
