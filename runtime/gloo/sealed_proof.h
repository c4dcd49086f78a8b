// With these messages both ends of a connection between two ranks prove that they know the job's token,
// without sending it.
//
//   who connects   -> who listens    hello: the two ranks and a nonce
//                  <-                a nonce of its own
//                  ->                the proof of who connects
//                  <-                the proof of who listens; from here on the connection is the ranks'
//
// All four messages have fixed sizes, so that neither end reads a byte of what comes after them. A stranger
// who connects learns nothing from which the token could be guessed, because the listening end proves itself
// last.
//
// A proof is an HMAC-SHA256 of the end that makes it, both ranks and both nonces. Its key is made of the
// token, the job, the group and a random ticket of the listener. So a proof does not hold if it was recorded
// earlier, or comes from another pair of ranks, another group or another job, or is the other end's own proof
// sent back.
//
// The exchange only says who is at the other end. What is sent later is neither encrypted nor sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/rendezvous/authentication.h"
#include "shared/base/types.h"

namespace cp::runtime {

enum class SealedEnd : std::uint8_t { connects, listens };

struct SealedLink {
  Rank connects = 0, listens = 0;
  std::string nonce_of_connecting, nonce_of_listening;  // kNonceBytes each
};

// The key of the proofs: an HMAC-SHA256 of the other three by the token.
std::string sealed_key(std::string_view token, std::string_view job_id, std::string_view group,
                       std::string_view ticket);

// The proof that the end `by` makes. It has 32 bytes, as every SHA-256 does.
constexpr std::size_t kProofBytes = 32;
std::string sealed_proof(const std::string& key, SealedEnd by, const SealedLink& link);

// sealed_hello() writes the first message: 8 bytes of magic, the two ranks in 4 bytes each, and the nonce of
// the end that connects. parse_sealed_hello() reads it back, and returns nothing for bytes that are no hello.
constexpr std::size_t kHelloBytes = 8 + 2 * 4 + kNonceBytes;
std::string sealed_hello(const SealedLink& link);
std::optional<SealedLink> parse_sealed_hello(std::string_view bytes);

}  // namespace cp::runtime
