// After a run, the ranks compare over the control plane what each sent with what arrived
// (shared/plan/transfer_check.h).
#pragma once

#include "runtime/rendezvous/client.h"
#include "shared/plan/trace.h"

namespace cp::runtime {

// Called by all ranks of the job with what each observed, with checksums. Throws the TransferFault on those
// whom it names as receiver, or as having another result than most, so that they are the first to fail; the
// others return. Throws Timeout when a rank does not come. Each rank is sent the records of all, in pieces:
// some 16 bytes for each collective and each pair of its members.
void compare_transfers(RendezvousClient& client, const RankTrace& trace,
                       RendezvousClient::TimeLimit limit = {});

}  // namespace cp::runtime
