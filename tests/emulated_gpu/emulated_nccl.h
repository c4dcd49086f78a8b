// What the emulated NCCL adds to NCCL's interface, and the environment that it reads:
//   NCCL_HOSTID                  the host that a rank says it is on: two ranks of one host cannot share a
//                                GPU, as in NCCL 2.28
//   NCCL_LAUNCH_ORDER_IMPLICIT   1: the work of a GPU starts in the order of the calls, whatever its
//                                communicators and streams
//   NCCL_PROFILER_PLUGIN         the path of a library that is told of calls (nccl_profiler.h)
//   CP_EMULATED_NCCL_CONCURRENT  1: work of several communicators may run at once
// Unless told otherwise the work of one GPU runs one at a time, in the order in which streams come to it:
// communicators whose order differs between ranks come to a deadlock, as they may on a GPU. Work of one
// communicator is always in the order of the calls.
//
// As NCCL does where it connects at run time, the first collective of a communicator blocks its host thread
// until all ranks call it, and the first send to a peer until that one receives (in a group: its end). Only
// an abort on this side ends such a call, the loss of a peer does not.
//
// Stricter than NCCL, never laxer: no rank leaves a collective, and no send ends, before all its peers are in
// it; counts, types, operations and addresses are compared and checked, and what does not fit ends as an
// error of the communicator. A communicator that is freed while a call uses it, which NCCL may survive, ends
// the process.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <nccl.h>

namespace cp::emulated {

// NCCL_HOSTID of this thread alone, for ranks that are threads of one process; empty: the environment's.
void set_host_id(const std::string& host_id);

// What ncclGetVersion() says in this process, and in whose words ranks of one GPU are refused (that of the
// header).
void set_nccl_version(int version);
int nccl_version();

// How long the first launch of each communicator of this process connects beside that, inside of the call and
// deaf to aborts (0).
void set_connect_time(std::chrono::milliseconds time);
// The communicator has an error of its own from now on, as of its proxy thread.
void break_communicator(ncclComm_t comm);
// Communicators of this process that were made and not freed.
std::size_t communicator_count();

// What NCCL does without saying so: of this process, so far.
struct NcclUse {
  std::size_t made = 0;                // communicators, also those that were split from others
  std::size_t registered = 0;          // by ncclCommRegister
  std::size_t without_effect = 0;      // of them: of memory that is not from ncclMemAlloc
  std::size_t allocated = 0;           // by ncclMemAlloc, and not freed
  std::size_t empty_groups = 0;        // ended with nothing to do, where NCCL 2.28 loses memory
  std::size_t channels_of_parent = 0;  // maxCTAs of the communicator that was split last
  std::size_t windows = 0;             // by ncclCommWindowRegister
  std::size_t by_copy_engines = 0;     // collectives
  std::size_t fell_back = 0;           // of communicators of the zero policy, to multiprocessors
};
NcclUse nccl_use();
// The most launches of one communicator that were under way at once since the last call; of this process.
std::size_t take_most_under_way();

}  // namespace cp::emulated
