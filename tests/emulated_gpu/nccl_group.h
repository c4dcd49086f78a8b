// What a thread has asked of NCCL since ncclGroupStart.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <nccl.h>

#include "tests/emulated_gpu/nccl_communicator.h"

namespace cp::emulated {

using CommunicatorPtr = std::shared_ptr<Communicator>;

// Frame of the interface's functions: a group of one where no group is open; an error in a group is its
// end's, too. Says what was wrong, and keeps it for ncclGetLastError.
ncclResult_t nccl_call(const char* function, const std::function<void()>& body);

// Of the handle. Throws NcclFailure where there is none or, with `ready`, where an earlier call is still in
// progress or has failed.
CommunicatorPtr find_communicator(ncclComm_t comm, bool ready);

// For bodies: parts of the group.
void add_job(const CommunicatorPtr& state,
             std::function<void()> job);  // its progress is the communicator's state
void add_operation(const CommunicatorPtr& communicator, const NcclOperation& operation);
// Of a communicator's last call: waits for what runs, then frees it.
void add_end(const CommunicatorPtr& communicator, std::function<void()> free);

ncclResult_t start_group();
bool is_empty_group();     // an outermost one that has nothing to do
void count_empty_group();  // for nccl_use()
ncclResult_t end_group();

}  // namespace cp::emulated
