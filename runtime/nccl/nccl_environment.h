// The environment variables of NCCL and CUDA that a launcher sets for its ranks, unless the user has set
// them. The libraries read most of them once, at their first call, so they must be there when a rank starts.
#pragma once

#include <string>
#include <vector>

#include "runtime/backend.h"
#include "runtime/job_environment.h"

namespace cp::runtime {

// This is Backend::variables of the nccl back end. It returns "NCCL_LAUNCH_ORDER_IMPLICIT=1" and so on:
//   NCCL_LAUNCH_ORDER_IMPLICIT=1    The communicators of a GPU start their work in the order of the calls.
//   CUDA_DEVICE_MAX_CONNECTIONS=32  The GPU has 32 queues, the largest number, instead of 8. Streams that
//                                   share a queue wait for one another's kernels.
//   NCCL_GRAPH_REGISTER=0           A rank that captures a CUDA graph need not wait until all others do, as
//                                   it would where NCCL registers the graph's buffers with them.
//   NCCL_SOCKET_IFNAME              The interface of --interface; lo if ranks share GPUs of one machine.
//   NCCL_SOCKET_MAGIC               A number made of the job's token. NCCL's data sockets ask for it in
//                                   versions that read this variable. Older ones ask for a number that is
//                                   the same everywhere.
// If ranks may share a GPU, which NCCL allows only to ranks of different hosts, also:
//   NCCL_HOSTID                     Each rank is a host of its own. It is set even if the user has set it,
//                                   because no two may be alike.
//   NCCL_MULTI_RANK_GPU_ENABLE=1    Asks versions that can have several ranks on a GPU to do so.
//   NCCL_NET=Socket                 What ranks send does not go out to a network card and back.
//   NCCL_MNNVL_ENABLE=0             These "hosts" do not try to reach each other by NVLink.
std::vector<std::string> nccl_variables(const JobEnvironment& rank, const LaunchNetwork& network);

}  // namespace cp::runtime
