// Turns results of NCCL's calls into the project's errors.
#pragma once

#include <string>

#include <nccl.h>

#include "shared/base/error.h"

namespace cp::runtime {

// Throws InvalidInput if NCCL refuses what it was asked for; if the reason is that two ranks have one GPU,
// the advice names --allow-shared-gpu. Throws PeerLost if something failed on the way: a connection, a peer,
// the GPU. The message is `what`, followed by the words of NCCL, which nothing reads after this. The facts
// are the given ones; if NCCL's words are about shared memory, there is advice about it. `comm` may be null.
[[noreturn]] void throw_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what,
                             ErrorFacts facts = {});

}  // namespace cp::runtime
