// Proof that both ends of a connection know the job's token, without sending it.
//
// The rank says hello with its claims and a nonce, the server answers with a nonce of its own. Both derive
// one key for each direction from the token and all of that (HMAC-SHA256), and seal each later frame with its
// key and its number on the connection (ChaCha20-Poly1305, RFC 8439). The first sealed frame of each side is
// its proof; a frame that was altered, left out, sent again or recorded on another connection does not open,
// and nobody without the token reads one. Hello and challenge are read by anybody: job id, rank, host, pid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/rendezvous/rendezvous.pb.h"
#include "shared/base/types.h"

namespace cp::runtime {

constexpr std::uint32_t kProtocolVersion = 4;
constexpr std::size_t kMacBytes = 16;       // the tag that ChaCha20-Poly1305 adds to a frame (RFC 8439)
constexpr std::size_t kNonceBytes = 32;     // as long as the output of SHA-256; chosen
constexpr std::size_t kMinTokenBytes = 16;  // chosen: 128 bits if they are random

// 32 random bytes in hexadecimal.
std::string make_token();
std::string make_nonce();  // kNonceBytes random bytes

// The token in the file, without white space around it. Throws AuthenticationError when the group or others
// may read the file (with the chmod that helps), InvalidInput when there is no such file or no token of
// kMinTokenBytes in it.
std::string read_token_file(const std::string& path);

std::string hmac_sha256(std::string_view key, std::string_view data);
bool equal_in_constant_time(std::string_view a, std::string_view b);

enum class Side : std::uint8_t { server, rank };

// What both sides must agree on.
struct Handshake {
  std::uint32_t protocol_version = kProtocolVersion;
  std::string job_id;
  Rank rank = 0;
  std::int32_t world_size = 1;
  std::string host;
  std::int64_t pid = 0;
  std::int32_t launches = 0;  // 0: a rank; else a launcher with so many ranks, of which `rank` is the first
  std::string rank_nonce, server_nonce;
};

// Seals and opens the frames of one connection, for one of its sides.
class Session {
 public:
  Session(std::string_view token, const Handshake& handshake, Side self);

  proto::RendezvousFrame seal(const std::string& message);
  // The frame's message. Throws AuthenticationError when it is not the next one that the other side sealed.
  std::string open(const proto::RendezvousFrame& frame);

 private:
  std::string seal_key_, open_key_;
  std::uint64_t sealed_ = 0, opened_ = 0;
};

}  // namespace cp::runtime
