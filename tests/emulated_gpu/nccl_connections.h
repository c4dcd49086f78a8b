// Connections that NCCL makes inside of the first calls that need them, on the calling thread: the ring and
// the trees of a communicator in its first collective, and those between two ranks in their first send and
// receive.
//
// A rank that needs one says so to its peers and waits until they have said the same. Whoever has said it
// once need not wait again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulated_gpu/nccl_bootstrap.h"
#include "tests/emulated_gpu/nccl_transfer.h"

namespace cp::emulated {

// For one thread at a time.
class NcclConnections {
 public:
  explicit NcclConnections(const Members& members);  // which must outlive this object

  // Blocks until all peers of the operations are in a call that needs the same. A peer that is lost is not
  // noticed. Throws SocketError when given up.
  void connect(const std::vector<NcclOperation>& operations, const GivenUp& given_up);

 private:
  enum Need : std::uint32_t { collective = 1, sends = 2, receives = 4 };
  struct Said {
    std::int32_t rank = 0;
    std::uint32_t needs = 0;
  };
  struct Peer {
    std::string name;
    std::uint32_t needed = 0;  // by the operations at hand
    std::uint32_t said = 0;    // by this rank to the peer
    std::uint32_t heard = 0;   // from the peer, seen from this side: it sends, so this rank `receives`
  };

  void note_needs(const std::vector<NcclOperation>& operations);

  const std::size_t self_;
  const Socket& calls_;
  std::vector<Peer> peers_;
};

}  // namespace cp::emulated
