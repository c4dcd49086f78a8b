// How the ranks of an emulated communicator find each other: all tell a root who they are, which tells each
// who is with it, and then each pair connects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulated_gpu/local_sockets.h"

namespace cp::emulated {

// A rank on its way into a communicator. Plain data, sent as it is.
struct Hello {
  int rank = 0, size = 0;  // of the communicator, or of the one that is split
  int color = 0, key = 0;
  int device = 0;
  std::uint64_t host = 0;
  // Of a window that all register: its place in its allocation, its size, and the allocation's.
  std::uint64_t window_at = 0, window_bytes = 0, allocation_bytes = 0;
  std::int32_t window_flags = 0;
  char listener[96] = {};
};

// What a rank then knows: the members by rank, itself among them, and connections to the others.
struct Members {
  int rank = -1;      // -1: in no communicator (its color is NCCL_SPLIT_NOCOLOR)
  std::string token;  // the communicator's own, equal on its ranks
  std::vector<Hello> hellos;
  std::vector<Socket> sockets;  // by rank; none with itself
  Socket calls;                 // where the others say what they have called (nccl_connections.h)
};

// Serves `size` ranks at the name, on a thread of its own, until each has its answer or all that came have
// gone; -1: as many as the first rank says.
void serve_root(const std::string& name, int size = -1);
// Throws SocketError where a rank or the root went away, or `given_up`.
Members join(const std::string& root, Hello hello, const GivenUp& given_up);

std::string calls_name(const Hello& hello);  // of a rank's Members::calls

std::uint64_t host_hash();  // of NCCL_HOSTID, or of the host's name

}  // namespace cp::emulated
