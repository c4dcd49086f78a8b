// What the calls of the emulated NCCL know of windows.
#pragma once

#include <cstddef>

#include "tests/emulated_gpu/nccl_communicator.h"

namespace cp::emulated {

// If copy engines move the collective, notes where its memory lies in the windows, and returns true: the
// communicator has copy engines, and both sides are in symmetric windows. Otherwise multiprocessors move it,
// as NCCL's documentation says, whatever the policy.
bool place_in_windows(const Communicator& communicator, std::size_t send_bytes, std::size_t recv_bytes,
                      NcclOperation& operation);

bool is_of_nccl(void* allocation);  // of ncclMemAlloc, and not freed
void count_window();                // for nccl_use()
void count_collective(bool by_copy_engines, bool fell_back);

}  // namespace cp::emulated
