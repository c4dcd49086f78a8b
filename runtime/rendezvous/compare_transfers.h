// After a run, the ranks compare over the control plane what each sent with what arrived
// (shared/plan/transfer_check.h).
#pragma once

#include "runtime/rendezvous/client.h"
#include "shared/plan/trace.h"

namespace cp::runtime {

// All ranks of the job must call this with what they observed, with checksums. It throws TransferFault on the
// rank that the fault names as receiver, or as having another result than most, so that this rank fails
// first; on the others it returns. Throws Timeout if a rank does not come. Each rank gets the records of all
// others, in pieces: about 16 bytes for each collective and each pair of its members.
void compare_transfers(RendezvousClient& client, const RankTrace& trace,
                       RendezvousClient::TimeLimit limit = {});

}  // namespace cp::runtime
