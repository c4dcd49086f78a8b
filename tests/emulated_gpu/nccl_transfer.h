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
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/emulated_gpu/local_sockets.h"

namespace cp::emulated {

struct NcclOperation {
  enum class Function : std::uint32_t {
    all_gather,
    reduce_scatter,
    all_reduce,
    broadcast,
    all_to_all,
    send,
    recv,
    put_signal,
    signal,
    wait_signal,
  };
  Function function = Function::send;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // root of a broadcast
  cudaStream_t stream = nullptr;
  // Of a collective that copy engines move: where its memory lies in the windows, which is the same on all
  // ranks; -1: multiprocessors move it. Of a put: where it arrives, in the peer's window of that number.
  std::int64_t send_at = -1, recv_at = -1;
  std::int32_t window = -1;
  std::size_t signals = 0;  // that a wait is for
};
bool is_one_sided(const NcclOperation& operation);
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
  // Memory that puts of the peers may write, by the number of the window; null: deregistered.
  void set_window(std::int32_t number, std::byte* data, std::size_t size);
  // Tells the peers that no more will come.
  void say_goodbye();

 private:
  struct Header;
  struct Frame;
  struct Outgoing;
  struct Peer;
  struct Item;
  class Run;
  struct WindowMemory {
    std::byte* data = nullptr;
    std::size_t size = 0;
  };
  // Writes what the peer has put as soon as it is read, whatever this rank does.
  void take_put(const Frame& frame);

  const int rank_;
  std::mutex windows_mutex_;
  std::vector<WindowMemory> windows_;
  std::vector<Peer> peers_;
  std::uint64_t collectives_ = 0;  // so far
};

}  // namespace cp::emulated
