// The data of an emulated communicator on its connections.
//
// Collectives: each rank sends each other one frame, of what that one needs of its memory, which may be
// nothing. Sends: a frame, which the receiver acknowledges when it is in a matching receive. Frames are read
// ahead of need, so that no order of a peer's calls blocks a connection; whoever needs a frame compares it
// with its own call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/emulated_gpu/local_sockets.h"

namespace cp::emulated {

struct NcclOperation {
  enum class Function : std::uint32_t { all_gather, reduce_scatter, all_reduce, broadcast, send, recv };
  Function function = Function::send;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // root of a broadcast
  cudaStream_t stream = nullptr;
};
bool is_collective(const NcclOperation& operation);
std::size_t size_bytes(ncclDataType_t type);
std::string to_text(const NcclOperation& operation);  // "all_reduce of 16 x type 7, op 0"

class NcclTransfers {
 public:
  NcclTransfers(int rank, const std::vector<Socket>& sockets);
  ~NcclTransfers();

  // Runs the operations together. Throws NcclFailure for what does not match and for a lost peer; returns
  // early, with memory as it may be, when given up.
  void run(const std::vector<NcclOperation>& operations, const GivenUp& given_up);
  // Tells the peers that no more will come.
  void say_goodbye();

 private:
  struct Header;
  struct Frame;
  struct Outgoing;
  struct Peer;
  struct Item;
  class Run;

  const int rank_;
  std::vector<Peer> peers_;
  std::uint64_t collectives_ = 0;  // so far
};

}  // namespace cp::emulated
