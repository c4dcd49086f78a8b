// What the emulated NCCL adds to NCCL's interface, and the environment that it reads:
//   NCCL_HOSTID                  the host that a rank says it is on: two ranks of one host cannot share a GPU, as in NCCL 2.28
//   NCCL_LAUNCH_ORDER_IMPLICIT   1: the work of a GPU starts in the order of the calls, whatever its communicators and streams
//   CP_EMULATED_NCCL_CONCURRENT  1: work of several communicators may run at once
// Unless told otherwise the work of one GPU runs one at a time, in the order in which streams come to it: communicators whose
// order differs between ranks come to a deadlock, as they may on a GPU. Work of one communicator is always in the order of the calls.
//
// Stricter than NCCL, never laxer: no rank leaves a collective, and no send ends, before all its peers are in it; counts, types,
// operations and addresses are compared and checked, and what does not fit ends as an error of the communicator.
#pragma once

#include <string>

namespace cp::emulated {

// NCCL_HOSTID of this thread alone, for ranks that are threads of one process; empty: the environment's.
void set_host_id(const std::string& host_id);

}  // namespace cp::emulated
