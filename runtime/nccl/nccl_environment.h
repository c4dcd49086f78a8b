// What NCCL and CUDA read from the environment of the ranks: set here where the user has set nothing. They
// read most of it once, at their first call.
#pragma once

#include <string>
#include <vector>

#include "runtime/backend.h"
#include "runtime/job_environment.h"

namespace cp::runtime {

// "NCCL_LAUNCH_ORDER_IMPLICIT=1", ...: Backend::variables of nccl.
//   NCCL_LAUNCH_ORDER_IMPLICIT=1    communicators of a GPU start their work in the order of the calls
//   CUDA_DEVICE_MAX_CONNECTIONS=32  the most: streams in one of the GPU's queues, 8 otherwise, wait for one
//                                   another's kernels
//   NCCL_SOCKET_IFNAME              the interface of --interface; where ranks share GPUs of one machine, lo
//   NCCL_SOCKET_MAGIC               a number made of the job's token, which NCCL's data sockets ask for in
//                                   versions that read this (those before ask for one that is the same
//                                   everywhere)
// and where ranks may share a GPU, which NCCL allows to ranks of different hosts alone:
//   NCCL_HOSTID                     each is a host of its own (set always: no two may be alike)
//   NCCL_MULTI_RANK_GPU_ENABLE=1    versions that take several ranks of a GPU are asked to
//   NCCL_NET=Socket                 what they send does not go out to a network card and back
//   NCCL_MNNVL_ENABLE=0             nor do "hosts" reach each other by NVLink
std::vector<std::string> nccl_variables(const JobEnvironment& rank, const LaunchNetwork& network);

}  // namespace cp::runtime
