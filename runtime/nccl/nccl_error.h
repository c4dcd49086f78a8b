// Results of NCCL's calls as the project's errors.
#pragma once

#include <string>

#include <nccl.h>

#include "shared/base/error.h"

namespace cp::runtime {

// Throws InvalidInput for what NCCL will not do, naming --allow-shared-gpu where two ranks have one GPU;
// PeerLost for what failed on the way: a connection, a peer, the GPU. The message is `what` and the words of
// NCCL, which nothing reads after this; the facts are the given ones, with advice about shared memory where
// NCCL's words are about it.
[[noreturn]] void throw_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what,
                             ErrorFacts facts = {});

}  // namespace cp::runtime
