#include "runtime/nccl/nccl_handles.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <cuda_runtime_api.h>

namespace cp::runtime {
namespace {

// Looks every 100 us (chosen), since the other side only stores an atomic and wakes nobody.
template <class Condition>
void poll_until(const Condition& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

bool has_failed(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  return ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclSuccess;
}

}  // namespace

bool NcclHandles::enter(Call call) {
  state_->inside.store(call);  // sequentially consistent, as in run_end: one of the two sees the other
  if (!state_->ending.load()) return true;
  leave();
  return false;
}

ncclComm_t* NcclHandles::add(Kind kind) {
  const std::lock_guard lock(state_->mutex);
  auto& free = kind == Kind::parent ? state_->free_parents : state_->free_children;
  if (free.empty()) return &(kind == Kind::parent ? state_->parents : state_->children).emplace_back(nullptr);
  ncclComm_t* const place = free.back();
  free.pop_back();
  return place;
}

void NcclHandles::retire(ncclComm_t* place) {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ending.load()) return;
    comm = std::exchange(*place, nullptr);
    const bool is_parent =
        std::ranges::any_of(state_->parents, [place](const ncclComm_t& parent) { return &parent == place; });
    (is_parent ? state_->free_parents : state_->free_children).push_back(place);
    if (comm == nullptr) return;
    ++state_->retiring;
  }
  std::thread([state = state_, comm] {
    static_cast<void>(cudaSetDevice(state->cuda_device));
    static_cast<void>(end_together({&comm}, End::destroy, [] {}));
    {
      const std::lock_guard lock(state->mutex);
      --state->retiring;
    }
    state->changed.notify_all();
  }).detach();
}

ncclResult_t NcclHandles::async_error(ncclComm_t comm) const {
  const std::lock_guard lock(state_->asking);
  if (is_ending()) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
  return result != ncclSuccess ? result : state;
}

bool NcclHandles::end(End how) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->ending.load()) return false;
    state_->began = Clock::now();
    state_->ending.store(true);
  }
  state_->changed.notify_all();
  std::thread([state = state_, how] { run_end(*state, how); }).detach();
  return true;
}

void NcclHandles::run_end(State& state, End how) {
  const bool ended = end_all(state, how);
  {
    const std::lock_guard lock(state.mutex);
    (ended ? state.ended : state.failed) = true;
  }
  state.changed.notify_all();
}

bool NcclHandles::end_all(State& state, End how) {
  poll_until([&] { return state.inside.load() != Call::make; });  // such a call writes the places read here
  { const std::lock_guard lock(state.asking); }  // async_error() is done, and cannot begin again
  std::vector<const ncclComm_t*> places;         // what is added later stays empty
  {
    const std::lock_guard lock(state.mutex);
    for (const auto* comms : {&state.parents, &state.children}) {
      for (const ncclComm_t& comm : *comms) places.push_back(&comm);
    }
  }
  if (places.empty()) return true;
  static_cast<void>(cudaSetDevice(state.cuda_device));
  return end_together(places, how, [&] { poll_until([&] { return state.inside.load() == Call::none; }); });
}

// All end in one group of NCCL, because an abort waits for the GPU, where another communicator's kernel may
// wait for what is not aborted yet. Parents come first: a split that is under way ends with its parent, and
// has then either written its child or never will.
template <class Free>
bool NcclHandles::end_together(const std::vector<const ncclComm_t*>& places, End how, const Free& may_free) {
  int levels = 1;  // how many groups of NCCL the thread is in
  bool ended = ncclGroupStart() == ncclSuccess;
  for (const ncclComm_t* place : places) {
    const ncclComm_t comm = *place;
    if (comm == nullptr) continue;
    if (how == End::destroy && !has_failed(comm)) {
      if (ncclCommDestroy(comm) == ncclSuccess) continue;
      ++levels;  // it fails without leaving its own group (NCCL 2.28)
    }
    if (ncclCommAbort(comm) != ncclSuccess) {
      ++levels;
      ended = false;
    }
  }
  // By now all are told to abort, even one that a call of the rank's thread still uses. NCCL frees them at
  // the end of the group, so that call must have returned before.
  may_free();
  for (; levels > 0; --levels) ended = ncclGroupEnd() == ncclSuccess && ended;
  return ended;
}

bool NcclHandles::await_end(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->ending.load(); });
  state_->changed.wait_until(lock, state_->began + timeout,
                             [&] { return (state_->ended || state_->failed) && state_->retiring == 0; });
  return state_->ended && state_->retiring == 0;
}

}  // namespace cp::runtime
