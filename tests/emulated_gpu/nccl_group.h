// What a thread has asked of NCCL since ncclGroupStart.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <nccl.h>

#include "tests/emulated_gpu/emulated_stream.h"
#include "tests/emulated_gpu/nccl_communicator.h"

namespace cp::emulated {

using CommunicatorPtr = std::shared_ptr<Communicator>;

// Frame of the interface's functions: a group of one where no group is open; an error in a group is its
// end's, too. Says what was wrong, and keeps it for ncclGetLastError.
ncclResult_t start_group();
ncclResult_t end_group();
void require_gpu_of_process();  // throws NcclFailure where it has none
// Ends the call, unless the failure leaves the group open, and keeps its text. Returns the call's result.
ncclResult_t fail_call(const char* function, const NcclFailure& failure);
template <class F>
ncclResult_t nccl_call(const char* function, const F& body) {
  const Inside inside(function);
  start_group();
  try {
    require_gpu_of_process();
    body();
  } catch (const NcclFailure& failure) {
    return fail_call(function, failure);
  }
  return end_group();
}

// Of the handle. Throws NcclFailure where there is none or, with `ready`, where an earlier call is still in
// progress or has failed.
CommunicatorPtr find_communicator(ncclComm_t comm, bool ready);

// For bodies: parts of the group.
void add_job(const CommunicatorPtr& state,
             std::function<void()> job);  // its progress is the communicator's state
void add_operation(const CommunicatorPtr& communicator, const NcclOperation& operation);
// Of a communicator's last call: waits for what runs, then frees it.
void add_end(const CommunicatorPtr& communicator, std::function<void()> free);

bool is_empty_group();     // an outermost one that has nothing to do
void count_empty_group();  // for nccl_use()

}  // namespace cp::emulated
