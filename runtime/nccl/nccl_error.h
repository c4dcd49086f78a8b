// Results of NCCL's calls as the project's errors.
#pragma once

#include <string>

#include <nccl.h>

namespace cp::runtime {

// Throws InvalidInput for what NCCL will not do, naming --allow-shared-gpu where two ranks have one GPU; PeerLost for what failed on
// the way: a connection, a peer, the GPU. The message is `what` and the words of NCCL.
[[noreturn]] void throw_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what);

}  // namespace cp::runtime
